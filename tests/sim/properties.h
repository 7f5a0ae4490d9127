/* properties.h - the property table: what both laws promise, as figures of simulated cases.
 *
 * A row is a property. It runs one or more cases and reports figures; each figure has a bar, and
 * the bar has a bound for each law. Of several cases the worst figure counts. Rows are data
 * (properties_*.c: steady, change, devices, edge); running cases and asking their trajectories is
 * properties_case.c; walking the table and printing is properties.c.
 *
 * Times in seconds and ms, sizes in bytes or pages, as the names say. MIB/s are 2^20 bytes.
 */
#ifndef PACEFS_TESTS_SIM_PROPERTIES_H
#define PACEFS_TESTS_SIM_PROPERTIES_H

#include "tests/sim/sim.h"

#include <math.h>

#define MIB 1048576.0
#define KIB 1024.0
#define PAGE 4096.0

enum { BARS_MAX = 6 };

struct bound {
	double least, most; /* NAN: not bounded on that side; both: no bar for this law */
};

/* Bounds of linux and pace, in the order of enum throttle_law. */
#define AT_LEAST(l, p)                                                                         \
	{                                                                                      \
		{.least = (l), .most = NAN},                                                   \
		{                                                                              \
			.least = (p), .most = NAN                                              \
		}                                                                              \
	}
#define AT_MOST(l, p)                                                                          \
	{                                                                                      \
		{.least = NAN, .most = (l)},                                                   \
		{                                                                              \
			.least = NAN, .most = (p)                                              \
		}                                                                              \
	}
#define WITHIN(from, to)                                                                       \
	{                                                                                      \
		{.least = (from), .most = (to)},                                               \
		{                                                                              \
			.least = (from), .most = (to)                                          \
		}                                                                              \
	}

struct bar {
	const char *what; /* with its unit */
	struct bound bound[THROTTLE_NR_LAWS];
	const char *first; /* what the design asked for, where that is something else, ... */
	const char *why;   /* ... and why, in one sentence */
};

struct check;

struct row {
	const char *name; /* "p04-jain" */
	const char *what;
	void (*run)(struct check *c);
	struct bar bars[BARS_MAX];
};

extern const struct row rows_steady[], rows_change[], rows_devices[], rows_edge[];
extern const size_t nr_rows_steady, nr_rows_change, nr_rows_devices, nr_rows_edge;

/* One row under one law. */
struct check {
	const struct row *row;
	enum throttle_law law;
	uint64_t seed;
	struct {
		bool there;
		double figure;
		char where[80];	       /* the case it was found in, */
		const struct run *run; /* to replay */
	} found[BARS_MAX];
	char broken[1024]; /* a run that did not end well, or empty */
	struct run *runs;  /* of this check */
	const struct run *last;
};

/* The figure of a bar in a case. Of several the worst is kept; one that is no number fails. */
void found(struct check *c, unsigned bar, double figure, const char *where, ...)
	__attribute__((format(printf, 4, 5)));

/* ---- cases ---- */

/* One device without limits of its own, request overhead or noise; T as given, B half of it, no
 * periodic writeback; 70 s, of which 30 are not measured; no writer yet. */
struct sim_config case_new(const struct check *c, double bytes_per_s, double limit_bytes);
/* One more device of that kind. */
struct sim_device_spec *case_device(struct sim_config *config, double bytes_per_s);
struct sim_writer_spec *case_writers(struct sim_config *config, enum sim_writer_kind kind,
	unsigned count, double request_bytes);
/* By increasing time. */
struct sim_action *case_action(
	struct sim_config *config, enum sim_action_kind kind, double at_s);

struct run {
	struct sim_config config;
	struct sim_result result;
	size_t nr_points, room, stride;
	char *points; /* struct sim_sample, the devices there are */
	struct run *next;
};

/* Never NULL: what could not run, or broke an invariant, is noted in the check and has no
 * points. */
const struct run *case_run(struct check *c, const struct sim_config *config);
/* 100 MiB/s, T = 400 MiB, so many greedy writers with 64 KiB requests. Rows share these runs. */
const struct run *case_steady(struct check *c, unsigned nr_writers);
void case_forget(struct check *c);
void case_forget_steady(void);

/* ---- asking the trajectory ---- */

const struct sim_sample *point(const struct run *r, size_t i);
/* The first point at or after s. */
const struct sim_sample *point_at(const struct run *r, double s);

typedef double (*measure)(const struct run *r, const struct sim_sample *s);

/* Over the points of [from_s, to_s); NAN if there are none. */
double trace_max(const struct run *r, double from_s, double to_s, measure of);
double trace_min(const struct run *r, double from_s, double to_s, measure of);
double trace_mean(const struct run *r, double from_s, double to_s, measure of);
/* The largest absolute value among the means over each whole second. */
double trace_worst_second(const struct run *r, double from_s, double to_s, measure of);
/* Seconds after from_s until the absolute value stays at or below most up to to_s; 0: it always
 * did; to_s - from_s: it does not at the end. */
double trace_settled(const struct run *r, double from_s, double to_s, measure of, double most);
/* What the device wrote in [from_s, to_s), bytes per second. */
double trace_written(const struct run *r, unsigned device, double from_s, double to_s);

/* Of device 0. */
double rate_error(const struct run *r, const struct sim_sample *s); /* r N / avg - 1 */
double dirty_over_limit(const struct run *r, const struct sim_sample *s);
double dirty_over_thresh(const struct run *r, const struct sim_sample *s);
double avg_bandwidth(const struct run *r, const struct sim_sample *s); /* pages/s */

/* Accepted by all writers of the spec, bytes/s of the measurement. */
double spec_rate(const struct run *r, unsigned spec);
double measured_s(const struct run *r);

#endif
