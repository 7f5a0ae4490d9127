/* The trajectory; its columns are described in sim.h. */
#include "tests/sim/model.h"

#include <inttypes.h>

enum { WRITERS_EVERY_US = 200000, WRITERS_SHOWN = 16 };

/* Groups of columns, in order; what is not of a row's event stays empty. */
#define GLOBAL                                                                                 \
	"%.6f,global_dirty_state,,%" PRIu64 ",%" PRIu64 ",%.0f,%.0f,%.0f,%" PRIu64 ",%" PRIu64
#define NO_GLOBAL ",,,,,,,"
#define NO_RATES ",,,,,,"
#define NO_PACE ",,,,,,,,,,,"

void sim_csv_header(FILE *f)
{
	fprintf(f,
		"time_s,event,bdi,"
		"nr_dirty,nr_writeback,background_thresh,dirty_thresh,dirty_limit,nr_dirtied,"
		"nr_written,"
		"write_bw,avg_write_bw,dirty_rate,dirty_ratelimit,task_ratelimit,"
		"balanced_dirty_ratelimit,"
		"limit,setpoint,dirty,bdi_setpoint,bdi_dirty,dirtied,dirtied_pause,paused,"
		"pause,"
		"period,think,"
		"pos_ratio,freerun,bdi_thresh,nr_writers,nr_queued,"
		"writer,spec,written\n");
}

static double kib(double pages)
{
	return pages * SIM_PAGE / 1024;
}

static void global_state(FILE *f, struct sim *sim, const struct sim_sample *s)
{
	uint64_t dirtied = 0, written = 0;

	for (unsigned i = 0; i < s->nr_devices; i++) {
		dirtied += s->device[i].dirtied;
		written += s->device[i].written;
	}
	fprintf(f, GLOBAL NO_RATES NO_PACE ",,%.1f,,,%u,,,\n", (double)s->now_us / 1e6,
		sim->dom.nr_dirty, sim->dom.nr_writeback, s->bg_thresh, s->thresh, s->limit,
		dirtied, written, s->freerun, sim->pacer.nr_queued);
}

static void bdi_ratelimit(FILE *f, struct sim *sim, const struct sim_sample *s, unsigned i)
{
	const struct sim_device_sample *d = &s->device[i];
	struct sim_device *own = &sim->device[i];
	double rate = (double)(d->dirtied - own->dirtied_seen) * (1e6 / SIM_SAMPLE_US);

	own->dirtied_seen = d->dirtied;
	fprintf(f,
		"%.6f,bdi_dirty_ratelimit,%u" NO_GLOBAL ",%.1f,%.1f,%.1f,%.1f,%.1f,%.1f" NO_PACE
		",%.4f,,%.1f,%u,%u,,,\n",
		(double)s->now_us / 1e6, i, kib(d->write_bandwidth),
		kib(d->avg_write_bandwidth), kib(rate), kib(d->dirty_ratelimit),
		kib(own->last.task_ratelimit), kib(d->balanced_dirty_ratelimit), d->pos_ratio,
		d->wb_thresh, d->nr_writers, d->nr_queued);
}

static void balance(FILE *f, struct sim *sim, const struct sim_sample *s, unsigned i)
{
	const struct sim_device *d = &sim->device[i];
	const struct throttle_verdict *v = &d->last;

	if (!d->judged)
		return;
	fprintf(f,
		"%.6f,balance_dirty_pages,%u" NO_GLOBAL ",,,,%.1f,%.1f,"
		",%.1f,%.1f,%.0f,%.1f,%.0f,%.0f,%.1f,%.3f,%.3f,%.3f,%.3f,%.4f,%.1f,%.1f,%u,%u,,"
		",\n",
		(double)s->now_us / 1e6, i, kib(v->dirty_ratelimit), kib(v->task_ratelimit),
		v->dirty_limit, v->setpoint, s->dirty, v->wb_setpoint, s->device[i].wb_dirty,
		v->nr_dirtied, v->nr_dirtied_pause, (double)v->pause_us / 1e3,
		(double)v->pause_us / 1e3, v->period_us / 1e3, v->think_us / 1e3, v->pos_ratio,
		v->freerun, v->wb_thresh, s->device[i].nr_writers, s->device[i].nr_queued);
}

static void progress(FILE *f, struct sim *sim, const struct sim_sample *s)
{
	unsigned shown[SIM_SPECS + SIM_DEVICES] = {0};

	for (unsigned i = 0; i < sim->nr_slots; i++) {
		const struct sim_writer *w = sim->writers[i];
		if (!w->file || !w->result || shown[w->spec_number]++ >= WRITERS_SHOWN)
			continue;
		fprintf(f,
			"%.6f,writer_progress,%u" NO_GLOBAL NO_RATES NO_PACE
			",,,,,,%u,%u,%" PRIu64 "\n",
			(double)s->now_us / 1e6, w->device->number, i, w->spec_number,
			w->bytes / SIM_PAGE);
	}
}

void sim_csv_sample(struct sim *sim, const struct sim_sample *s)
{
	FILE *f = sim->config->csv;

	global_state(f, sim, s);
	for (unsigned i = 0; i < s->nr_devices; i++) {
		bdi_ratelimit(f, sim, s, i);
		balance(f, sim, s, i);
	}
	if (s->now_us % WRITERS_EVERY_US == 0)
		progress(f, sim, s);
}
