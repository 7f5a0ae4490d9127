/* sim.h - pacefs in simulated time: the real throttle, pacer, flush planner and pick, driven by
 * discrete events with simulated writers and devices around them. One seed replays one run.
 *
 *	struct sim_config c;
 *	struct sim_result r;
 *
 *	sim_config_init(&c);
 *	sim_config_set(&c, "limit", "100M", message, sizeof(message));
 *	sim_config_set(&c, "writer", "100xgreedy,4K", message, sizeof(message));
 *	if (sim_config_check(&c, message, sizeof(message)) == 0)
 *		sim_run(&c, &r); ... sim_result_free(&r);
 *
 * Units: as the names say; sizes and rates on the command line take K, M, G (powers of 1024).
 *
 * Trajectory (--csv FILE). Long format: one header line, one row per thing, columns that do not
 * belong to a row's event are empty. Names and units are those of the kernel's tracepoints
 * (pages; rates in KiB/s; times in ms). The columns, in this order:
 *	time_s		seconds since the start
 *	event		global_dirty_state | bdi_dirty_ratelimit | balance_dirty_pages |
 *			writer_progress
 *	bdi		number of the device, from 0 (not global_dirty_state)
 *   global_dirty_state: each sample (20 ms)
 *	nr_dirty nr_writeback background_thresh dirty_thresh dirty_limit nr_dirtied nr_written
 *   bdi_dirty_ratelimit: each sample and device
 *	write_bw avg_write_bw dirty_rate dirty_ratelimit task_ratelimit
 *	balanced_dirty_ratelimit
 *   balance_dirty_pages: the last verdict of the device within the sample, if there was one
 *	limit setpoint dirty bdi_setpoint bdi_dirty (dirty_ratelimit task_ratelimit as above)
 *	dirtied dirtied_pause paused pause period think
 *   ours, filled in where they are known
 *	pos_ratio freerun bdi_thresh nr_writers nr_queued
 *   writer_progress: every 200 ms, for up to 16 lasting writers a spec
 *	writer spec written		(number, its spec, pages accepted so far)
 */
#ifndef PACEFS_TESTS_SIM_SIM_H
#define PACEFS_TESTS_SIM_SIM_H

#include "fuse/settings.h"
#include "throttle/throttle.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum {
	SIM_DEVICES = 16, /* most, and so on */
	SIM_SPECS = 16,
	SIM_ACTIONS = 32,
	SIM_STEPS = 8,
	SIM_WRITERS = 10000, /* at once */
	SIM_SAMPLE_US = 20000,
};

/* ---- what is simulated ---- */

struct sim_step {
	double at_s, bytes_per_s;
};

/* A device serves one request at a time, in the order of submission. */
struct sim_device_spec {
	double bytes_per_s;
	unsigned nr_steps; /* later speeds */
	struct sim_step steps[SIM_STEPS];
	double overhead_us;	    /* of each request */
	double noise;		    /* sigma of log-normal speed, a value per noise_ms, ... */
	double noise_ms, noise_rho; /* ... correlated with the last one */
	unsigned burst;		    /* so many requests (or all there are) complete together */
	double stall_at_s, stall_s, stall_every_s;    /* every 0: once */
	double cache_bytes, cache_bytes_per_s;	      /* volatile write cache; 0: none */
	double seek_min_ms, seek_max_ms, rotation_ms; /* seek_max 0: no seeks */
	double near_bytes, disk_bytes;		      /* no seek within; size of the disk */
	double zone_bytes, zone_pause_s; /* SMR: after so many bytes it stops so long */
	double prior_bytes_per_s;	 /* believed before anything is measured */
	struct device_settings settings;
};

enum sim_writer_kind {
	SIM_GREEDY, /* as fast as it is let */
	SIM_PACED,  /* bytes_per_s, a backlog is made up for */
	SIM_BURSTY, /* greedy for on_s, silent for off_s */
	SIM_SHORT,  /* per_s of them appear, each writes total_bytes and ends */
	SIM_HOT,    /* rewrites the same total_bytes of its file, at bytes_per_s */
};

struct sim_writer_spec {
	enum sim_writer_kind kind;
	unsigned count;
	uint64_t request_bytes; /* 4 KiB .. 1 MiB, whole pages */
	unsigned device;
	double bytes_per_s; /* PACED, HOT */
	double on_s, off_s;
	double per_s;
	uint64_t total_bytes; /* it ends after so many; 0: never */
	double from_s, to_s;  /* appears and disappears; to_s 0: stays */
	double fsync_s;	      /* fsync that often; 0: never */
	bool shared;	      /* its file is open for writing elsewhere too */
};

enum sim_action_kind {
	SIM_SET_LIMIT,	    /* value: bytes; the background follows unless it was given */
	SIM_SET_BACKGROUND, /* value: bytes */
	SIM_SET_LAW,	    /* law */
	SIM_SET_DEVICE,	    /* settings, of device */
	SIM_SYNC,	    /* all that is dirty now; of all devices */
	SIM_TRUNCATE,	    /* value: pages dropped from the ends of files of device, at most */
};

struct sim_action {
	enum sim_action_kind kind;
	double at_s;
	uint64_t value;
	enum throttle_law law;
	unsigned device;
	struct device_settings settings;
};

struct sim_sample;

struct sim_config {
	uint64_t seed;
	enum throttle_law law;
	double seconds;	 /* all of it ... */
	double warmup_s; /* ... of which the first part is not measured */
	uint64_t limit_bytes;
	uint64_t background_bytes;			/* 0: half of the limit */
	uint64_t expire_centisecs, writeback_centisecs; /* periodic; 0: none */
	double copy_bytes_per_s;			/* a writer between its replies, ... */
	double request_us;				/* ... and each request besides */
	/* The simple form: so many greedy writers on each device, besides the specs below. */
	uint64_t greedy_each, request_bytes;
	unsigned nr_devices, nr_writers, nr_actions; /* of the lists */
	struct sim_device_spec devices[SIM_DEVICES];
	struct sim_writer_spec writers[SIM_SPECS];
	struct sim_action actions[SIM_ACTIONS]; /* by at_s */
	bool devices_are_default;		/* none was given yet */
	bool drain; /* at the end writers stop, and the run goes on until all is written */
	uint64_t max_events; /* for a caller in a hurry: the end of the run; 0: none */

	FILE *csv;	/* trajectory, or NULL */
	FILE *messages; /* of a broken invariant, or NULL */
	/* Called every SIM_SAMPLE_US, warm-up included. */
	void (*on_sample)(const struct sim_sample *s, void *arg);
	void *arg;
};

/* One 50 MiB/s device, law pace, limit 100M, 60 s of which 20 warm-up, and no writer. */
void sim_config_init(struct sim_config *c);

/* An option of the command line without its dashes: "limit" "100M", "writer" "10xgreedy,4K",
 * "device" "50M,seek=1..15ms". The first device (or writer) given replaces the default.
 * 0, or -EINVAL with one line (value, range, unit) in message and *c unchanged;
 * -ENOENT: there is no such option. */
int sim_config_set(
	struct sim_config *c, const char *name, const char *value, char *message, size_t size);
/* A line as sim_config_print() prints it (the program's name first), over a fresh *c. */
int sim_config_parse(struct sim_config *c, const char *line, char *message, size_t size);
/* Everything within its range and possible together? Run nothing that fails here. */
int sim_config_check(const struct sim_config *c, char *message, size_t size);
/* The command line that replays it. */
void sim_config_print(const struct sim_config *c, FILE *out);
/* The text of --help about options and SPECs. */
void sim_config_help(FILE *out);

/* ---- what happened ---- */

/* Values from 1 us to hours, each within 1 %. */
enum { SIM_BUCKETS = 64 * 32 };
struct sim_histogram {
	uint64_t total, max_us, sum_us;
	uint32_t bucket[SIM_BUCKETS];
};
/* The value that q (0..1) of all are not above, ms; 0 if there are none. */
double sim_percentile_ms(const struct sim_histogram *h, double q);
/* Share of the values below. */
double sim_share_below(const struct sim_histogram *h, uint64_t us);

struct sim_device_sample {
	double wb_dirty, wb_reclaimable; /* D_j, R_j, pages */
	double wb_thresh, wb_bg_thresh;	 /* T_j, B_j */
	double limit, cap;		 /* in force for admission; THROTTLE_NO_CAP */
	double bg_target;		 /* the flusher starts above, pages of R_j */
	double write_bandwidth, avg_write_bandwidth, dirty_ratelimit,
		balanced_dirty_ratelimit;   /* pages/s */
	double reference_bandwidth;	    /* that limits in time count with */
	double proportion;		    /* of completions, 0..1 */
	double pos_ratio;		    /* of the last verdict */
	uint64_t dirtied, written, dropped; /* pages so far */
	unsigned nr_writers, nr_queued;	    /* now there; waiting for admission */
	bool in_service;
};
struct sim_sample {
	uint64_t now_us;
	double dirty, reclaimable; /* D, R, pages */
	double thresh, bg_thresh, limit, freerun, setpoint;
	unsigned nr_devices;
	struct sim_device_sample device[SIM_DEVICES];
};

/* Of one lasting writer (not SIM_SHORT), within the measurement. */
struct sim_writer_result {
	unsigned spec, device;
	bool whole; /* it was there all the time */
	uint64_t bytes, requests;
	uint64_t wait_max_us;  /* of one write, from request to reply, or to the end */
	uint64_t stand_max_us; /* longest time without a page accepted while it wanted one */
	uint64_t pauses;
	uint64_t fsyncs, fsync_max_us;
};

struct sim_spec_result { /* all writers of a spec together */
	uint64_t bytes, requests, pauses, begun, ended;
	struct sim_histogram wait; /* from request to reply */
};

struct sim_device_result {
	double throughput;     /* written / what it could have written at its nominal speed */
	double bytes_per_s;    /* written */
	double possible_bytes; /* at its nominal speed */
	/* Share of the time with nothing in service while R > B and its writers are held. */
	double idle;
	double jain;		      /* of its greedy writers that were there all the time */
	double mean_dirty, max_dirty; /* pages; max of the whole run */
	double mean_ratelimit, ratelimit_cv; /* pages/s, of the samples */
	double ratelimit_error; /* mean of r / (avg_write_bandwidth / writers) - 1 */
	double avg_error;	/* mean avg_write_bandwidth / (written per s) - 1 */
	uint64_t requests, seeks, written_pages;
	uint64_t first_submit_us;	 /* of the whole run; UINT64_MAX: never */
	double first_submit_reclaimable; /* R_j then, pages */
	uint64_t stalls;
	struct sim_histogram pause, queue_wait;
};

struct sim_sync_result {
	uint64_t at_us, took_us;   /* UINT64_MAX: did not end */
	uint64_t dirty, in_flight; /* pages when it was called */
	uint64_t written;	   /* pages that completed meanwhile */
};

struct sim_result {
	bool broken;	   /* an invariant: */
	char message[512]; /* which, and the figures */
	uint64_t events, hash;
	double seconds;			   /* simulated */
	double throughput;		   /* all devices: written / possible */
	double jain;			   /* the least of the devices' */
	double max_dirty_over_limit;	   /* of D / the limit in force, whole run */
	double max_dirty_over_thresh;	   /* of D / T, measurement */
	double mean_position, position_pp; /* of D: (mean - S) / h; (max - min) / h, samples */
	double ratelimit_error;		   /* the largest of the devices', by size */
	double idle;			   /* the largest */
	uint64_t pauses, blocked, freerun, exempt; /* verdicts in the measurement */
	uint64_t over_limit_pages;		   /* the pacer's own finding: 0 */
	struct sim_histogram pause;		   /* all writers, each pause by itself */
	struct sim_histogram queue_wait;
	struct sim_histogram wait; /* write(): request to reply */
	double drained_us;	   /* with drain: how long after the end; else 0 */
	unsigned nr_devices, nr_specs, nr_writers, nr_syncs;
	struct sim_device_result device[SIM_DEVICES];
	struct sim_spec_result spec[SIM_SPECS + SIM_DEVICES]; /* the simple form's come last */
	struct sim_writer_result *writers;
	struct sim_sync_result syncs[SIM_ACTIONS];
};

/* c has passed the check. 0; -EILSEQ: an invariant broke (result->message); -ENOMEM. The result
 * is filled in as far as the run came and wants sim_result_free() in any case. */
int sim_run(const struct sim_config *c, struct sim_result *ret);
void sim_result_free(struct sim_result *r);
/* The summary line, "name=value ..." with a newline, and one for each device when there are
 * several. */
void sim_result_print(const struct sim_config *c, const struct sim_result *r, FILE *out);

/* ---- what the program offers besides ---- */

/* The rows of the property table for these laws (bit 1 << law) on stdout, a line each, and
 * "N passed, N failed" at the end. rows: names or numbers, none: all. Returns how many failed,
 * or -EINVAL: no such row. (properties.c) */
int sim_properties(unsigned laws, const char *const *rows, size_t nr_rows, uint64_t seed);

/* Nothing broke, but is it what a user would expect? r->message says what is not: a writer that
 * stood for too long, a device idle with much to write. Only a case that a swarm might draw is
 * judged fairly. (swarm.c) */
void sim_judge(const struct sim_config *c, struct sim_result *r);
/* Random cases for so many seconds of wall-clock time. Returns how many failed. (swarm.c) */
int sim_swarm(double seconds, uint64_t seed);

#endif
