/* model.h - the parts of the simulator and what they know of each other. See sim.h for what it is.
 *
 * One loop (sim.c) takes the next timer and calls whom it belongs to; nothing else moves time.
 * What a mount's threads do around the step functions is repeated here around the same functions:
 *	pacer_submit(), pacer_step()			fuse/write.c
 *	flush_plan_make(), flush_pick(), ...		backend/flush/flusher.c
 * Files are runs of pages, not pages: a file is written in order, so its dirty pages are one
 * run, and so are those in writeback before it.
 */
#ifndef PACEFS_TESTS_SIM_MODEL_H
#define PACEFS_TESTS_SIM_MODEL_H

#include "backend/cache/cache.h"
#include "backend/flush/pick.h"
#include "backend/flush/plan.h"
#include "fuse/pacer.h"
#include "tests/sim/sim.h"

#define SIM_NEVER UINT64_MAX
#define SIM_PAGE 4096

struct sim;
struct sim_device;
struct sim_writer;

/* ---- random.c: the only source of chance ---- */

struct sim_random {
	uint64_t state;
};
/* A stream of its own for each purpose, so that one more draw here changes nothing there. */
struct sim_random sim_random_make(uint64_t seed, uint64_t stream);
uint64_t sim_random_next(struct sim_random *r);
double sim_random_uniform(struct sim_random *r); /* [0, 1) */
double sim_random_normal(struct sim_random *r);

/* ---- events.c: what is due when ---- */

enum sim_event {
	SIM_EV_WRITER, /* issues a request, or ends */
	SIM_EV_PACER,
	SIM_EV_FLUSHER,
	SIM_EV_DEVICE, /* a request is served */
	SIM_EV_SPAWN,  /* writers of a spec appear */
	SIM_EV_ACTION,
	SIM_EV_SAMPLE,
	SIM_EV_STOP, /* the time is over */
};
#define SIM_NR_EVENTS (SIM_EV_STOP + 1)

struct sim_timer {
	uint64_t at_us; /* SIM_NEVER: not armed */
	uint64_t sequence;
	size_t slot; /* in the heap, + 1; 0: not armed */
	enum sim_event event;
	unsigned id; /* of the device, spec, writer */
	void *owner;
};
struct sim_events {
	struct sim_timer **heap;
	size_t nr, room;
	uint64_t sequence;
};

void sim_timer_init(struct sim_timer *t, enum sim_event event, unsigned id, void *owner);
/* At at_us, wherever it was before. False: no memory. */
bool sim_arm(struct sim_events *e, struct sim_timer *t, uint64_t at_us);
void sim_disarm(struct sim_events *e, struct sim_timer *t);
/* The first by (time, sequence), no longer armed; NULL: none. */
struct sim_timer *sim_next(struct sim_events *e);

/* ---- file.c: pages of a file ---- */

struct sim_file {
	struct node node; /* nr_dirty, nr_writeback, nr_tagged, inflight_bytes; lists */
	struct sim_device *device;
	uint64_t dirty_from; /* first dirty page; they are all in a row */
	uint64_t written_to; /* pages before this are not in flight either */
	uint64_t tagged_to;  /* dirty pages before this are tagged ... */
	uint64_t sync_to;    /* ... and those before this are counted by the device's sync */
	uint64_t loop_pages; /* a hot file is so long and written round and round; 0: no */
	uint64_t place;	     /* of page 0 on the disk, bytes */
	struct sim_writer *waiting; /* in fsync */
	struct sim_file *next;	    /* free ones */
	struct sim_file *all;	    /* all that ever were */
};

struct sim_io {
	struct sim_file *file;
	uint64_t index, nr_pages, nr_tagged, nr_sync;
	uint64_t submitted_us;
	struct sim_io *next;
};

struct sim_file *sim_file_create(struct sim *sim, struct sim_device *d, uint64_t loop_pages);
/* Its writer has ended: it goes as soon as it is clean. */
void sim_file_release(struct sim *sim, struct sim_file *f);
/* Files that are clean and unused are freed. */
void sim_files_reap(struct sim *sim);
/* Pages that writing nr_pages more would newly dirty. */
uint64_t sim_file_count_new(const struct sim_file *f, uint64_t nr_pages);
void sim_file_dirty(struct sim_file *f, uint64_t nr_pages, uint64_t now_us);
/* The run that one request of at most most pages can carry now; 0: none. */
uint64_t sim_file_run(const struct sim_file *f, uint64_t most, bool tagged_only);
void sim_file_begin(struct sim_file *f, struct sim_io *io, uint64_t nr_pages);
void sim_file_end(struct sim_io *io);
/* Drop up to most dirty pages from its end; returns how many. */
uint64_t sim_file_drop(struct sim_file *f, uint64_t most);
/* What is dirty or in flight is tagged; for a sync of the device it is counted too. */
void sim_file_tag(struct sim_file *f, bool sync);

/* ---- device.c ---- */

/* Walks along the device's nominal speed; each walker for itself. */
struct sim_speed {
	const struct sim_device_spec *spec;
	struct sim_random random;
	uint64_t interval; /* of noise, + 1; 0: not begun */
	double z, factor;
};

struct sim_device {
	struct sim *sim;
	unsigned number;
	const struct sim_device_spec *spec;
	struct device dev;
	struct pacer_device pd;

	/* flusher.c */
	struct sim_timer flusher_timer;
	struct flush_window window;
	struct flush_sizes sizes;
	struct flush_plan plan;
	struct flush_pick pick;
	uint64_t inflight_bytes;
	unsigned nr_inflight;
	struct sim_io *pool, *free_ios;

	/* the device itself */
	struct sim_timer timer;
	struct sim_io *queue, **queue_tail;   /* submitted; the first is in service */
	struct sim_io *served, **served_tail; /* complete with the next burst */
	unsigned nr_served;
	bool in_service;
	double free_us; /* when the last service ended; fractions are kept */
	double cached;	/* bytes in its write cache as of cached_us */
	double cached_us;
	uint64_t head;	  /* bytes */
	double zone_left; /* bytes until the next pause */
	struct sim_speed speed, possible;
	struct sim_random random;

	/* stats.c */
	uint64_t nr_requests, nr_seeks, nr_stalls;
	uint64_t nr_writers, nr_writing; /* there; with a request under way */
	uint64_t taken, dropped;	 /* pages: our own books */
	uint64_t sync_left;		 /* pages the sync waits for */
	double possible_bytes;		 /* at nominal speed, up to possible_us */
	double possible_us;
	double lost_bytes;	  /* of them: overheads and pauses that nobody can avoid */
	double losing_bytes;	  /* ... and of the request in service, not counted yet */
	double idle_us, dirty_us; /* integrals: idle while R > B and held; D_j dt */
	double idle_total_us;
	struct sim_device_mark {
		uint64_t requests, seeks, written, stalls;
		double possible, lost;
	} mark; /* as of the start of the measurement */
	double sum_rate, sum_rate2, sum_rate_error, sum_avg;
	uint64_t nr_samples;
	double task_ratelimit;		     /* of the last verdict */
	struct throttle_verdict last;	     /* within this sample, and */
	bool judged;			     /* there was one */
	uint64_t dirtied_seen, written_seen; /* at the last sample */
	struct sim_device_result *result;
};

void sim_device_init(struct sim *sim, struct sim_device *d, unsigned number);
void sim_device_submit(struct sim_device *d, struct sim_io *io);
/* The request in service has ended: a list of those that complete, or NULL. */
struct sim_io *sim_device_served(struct sim_device *d);
/* possible_bytes up to now. */
void sim_device_possible(struct sim_device *d, uint64_t now_us);

/* ---- flusher.c ---- */

void sim_flusher_init(struct sim_device *d);
/* done: completed requests, of nr_done */
void sim_flusher_step(struct sim_device *d, struct sim_io *done);
void sim_flusher_kick(struct sim_device *d);

/* ---- writer.c ---- */

struct sim_writer {
	struct held held; /* its one request */
	struct sim *sim;
	struct sim_timer timer;
	const struct sim_writer_spec *spec;
	unsigned spec_number, slot;
	uint64_t id; /* never used again */
	struct sim_device *device;
	struct sim_file *file;
	struct sim_random random;
	uint64_t born_us, left_bytes;
	double due_us, fsync_due_us;
	bool writing, syncing;
	uint64_t since_us; /* it stands since: last page accepted, or it began to want one */
	uint64_t fsync_us;
	uint64_t bytes;			  /* accepted, whole life */
	struct sim_writer_result *result; /* NULL: short-lived */
	struct sim_writer *next_free;
};

extern const struct pacer_ops sim_pacer_ops;

/* Writers of a spec appear; arms the timer for the next of them. */
void sim_spawn(struct sim *sim, unsigned spec);
void sim_writer_event(struct sim_writer *w);
/* The requests on the list are answered. */
void sim_answer(struct sim *sim, struct held *ready);
/* What an fsync waited for is written. */
void sim_writer_synced(struct sim_writer *w);

/* ---- check.c ---- */

/* Breaks the run off. Only the first one counts. */
void sim_broken(struct sim *sim, const char *format, ...) __attribute__((format(printf, 2, 3)));
void sim_check(struct sim *sim);   /* after each event, O(1) */
void sim_recount(struct sim *sim); /* everything */
void sim_check_take(struct sim_writer *w, uint64_t nr_pages);
void sim_check_verdict(struct sim *sim, const struct sim_device *d,
	const struct throttle_sample *s, const struct throttle_verdict *v);

/* ---- stats.c, csv.c ---- */

void sim_histogram_add(struct sim_histogram *h, uint64_t us);
void sim_stats_advance(struct sim *sim, uint64_t to_us); /* integrals */
void sim_stats_begin(struct sim *sim);			 /* the warm-up is over */
void sim_stats_sample(struct sim *sim);
void sim_stats_verdict(struct sim_writer *w, const struct throttle_verdict *v);
void sim_stats_taken(struct sim_writer *w, uint64_t bytes);
void sim_stats_end(struct sim *sim);
void sim_csv_header(FILE *f);
void sim_csv_sample(struct sim *sim, const struct sim_sample *s);

/* ---- swarm.c ---- */

/* A random case. */
void sim_swarm_draw(struct sim_random *r, struct sim_config *c);

/* ---- sim.c ---- */

struct sim {
	const struct sim_config *config;
	struct sim_result *result;
	uint64_t now_us;
	struct sim_events events;
	struct domain dom;
	struct pacer pacer;
	struct sim_timer pacer_timer, action_timer, sample_timer, stop_timer;
	unsigned nr_devices, nr_specs;
	struct sim_device device[SIM_DEVICES];
	struct sim_writer_spec spec[SIM_SPECS + SIM_DEVICES];
	struct sim_timer spawn_timer[SIM_SPECS + SIM_DEVICES];
	double spawn_due_us[SIM_SPECS + SIM_DEVICES];
	unsigned next_action;
	struct sim_writer **writers; /* by slot */
	unsigned nr_slots, nr_alive;
	struct sim_writer *free_writers;
	uint64_t next_id, next_file;
	struct sim_file *all_files, *free_files;
	unsigned next_result;
	bool over;	/* broken, or out of memory */
	bool no_memory; /* ... the latter */
	bool measuring, stopped;
	uint64_t stopped_us;
	bool sync_running;
	unsigned nr_sync_waiting;
	/* stats */
	uint64_t advanced_us;
	double max_over_limit, max_over_thresh;
	double sum_position, min_position, max_position;
	uint64_t nr_positions;
	double measured_from_us;
	struct sim_random random;
};

/* The pacer looks now, if anybody waits. */
void sim_pacer_wake(struct sim *sim);
void sim_pacer_arm(struct sim *sim);
void sim_no_memory(struct sim *sim);
/* A sync's last page is written: it ends, and the next one begins. */
void sim_sync_done(struct sim *sim);

#endif
