/* Random cases. What is drawn is printed as a command line and run as that line reads, so a
 * failure replays by it. */
#include "tests/sim/config.h"
#include "tests/sim/model.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
	MOST_CASE_S = 120,     /* of the clock; a longer one hangs */
	REQUEST_MOST = 131072, /* of a writer */
};

/* ---- drawing ---- */

static bool chance(struct sim_random *r, double p)
{
	return sim_random_uniform(r) < p;
}

static double between(struct sim_random *r, double least, double most)
{
	return least + (most - least) * sim_random_uniform(r);
}

/* Log-uniform, as people choose: two digits. */
static double spread(struct sim_random *r, double least, double most)
{
	char text[32];

	snprintf(text, sizeof(text), "%.1e", least * pow(most / least, sim_random_uniform(r)));
	return fmin(fmax(strtod(text, NULL), least), most);
}

static uint64_t pages(struct sim_random *r, double least, double most)
{
	return (uint64_t)(spread(r, least, most) / SIM_PAGE) * SIM_PAGE;
}

static double tenths(struct sim_random *r, double least, double most)
{
	return round(between(r, least, most) * 10) / 10;
}

static void draw_settings(struct sim_random *r, struct device_settings *s, uint64_t limit)
{
	if (chance(r, 0.2))
		s->max_bytes = (uint64_t)spread(r, 65536, fmax((double)limit, 131072));
	if (chance(r, 0.15))
		s->strict_limit = true;
	if (chance(r, 0.15))
		s->max_ratio = 1 + sim_random_next(r) % 100;
	if (chance(r, 0.15))
		s->min_ratio = sim_random_next(r) % (s->max_ratio < 30 ? s->max_ratio + 1 : 31);
	if (chance(r, 0.25))
		s->dirty_centisecs = 10 + sim_random_next(r) % 1000;
	if (chance(r, 0.25))
		s->dirty_background_centisecs = 10 + sim_random_next(r) % 500;
}

static void draw_device(struct sim_random *r, struct sim_device_spec *d, uint64_t limit)
{
	*d = sim_device_default;
	d->bytes_per_s = spread(r, 200e3, 300e6);
	d->overhead_us = chance(r, 0.5) ? 50 : floor(spread(r, 1, 20000));
	if (chance(r, 0.2)) {
		d->steps[0].at_s = tenths(r, 0.1, 6);
		d->steps[0].bytes_per_s = spread(r, 200e3, 300e6);
		d->nr_steps = 1;
	}
	if (chance(r, 0.2)) {
		d->noise = tenths(r, 0.1, 1);
		d->noise_ms = floor(spread(r, 1, 1000));
		d->noise_rho = chance(r, 0.5) ? 0 : tenths(r, 0, 0.9);
	}
	if (chance(r, 0.2))
		d->burst = 2 + (unsigned)(sim_random_next(r) % 63);
	if (chance(r, 0.2)) {
		d->stall_at_s = tenths(r, 0, 6);
		d->stall_s = tenths(r, 0.1, 4);
		d->stall_every_s = chance(r, 0.3) ? 2 * d->stall_s : 0;
	}
	if (chance(r, 0.15)) {
		d->cache_bytes = (double)pages(r, 65536, 64e6);
		d->cache_bytes_per_s = 2e9;
	}
	if (chance(r, 0.2)) {
		d->seek_max_ms = floor(between(r, 1, 20));
		d->rotation_ms = floor(between(r, 0, 8));
	}
	if (chance(r, 0.1)) {
		d->zone_bytes = spread(r, 1048576, 256e6);
		d->zone_pause_s = tenths(r, 0.1, 3);
	}
	if (chance(r, 0.3))
		d->prior_bytes_per_s = spread(r, 1e5, 1e9);
	draw_settings(r, &d->settings, limit);
}

static void draw_writer(struct sim_random *r, struct sim_writer_spec *w, unsigned nr_devices)
{
	*w = sim_writer_default;
	w->kind = chance(r, 0.5) ? SIM_GREEDY : (enum sim_writer_kind)(sim_random_next(r) % 5);
	w->count = chance(r, 0.1) ? (unsigned)spread(r, 1, 1000) : (unsigned)spread(r, 1, 60);
	w->request_bytes = SIM_PAGE * (chance(r, 0.5) ? 1 : pages(r, 4096, 1048576) / SIM_PAGE);
	w->device = (unsigned)(sim_random_next(r) % nr_devices);
	w->bytes_per_s = spread(r, 10e3, 50e6);
	w->on_s = tenths(r, 0.1, 2);
	w->off_s = tenths(r, 0.1, 2);
	w->shared = chance(r, 0.1);
	if (chance(r, 0.3))
		w->from_s = tenths(r, 0, 4);
	if (chance(r, 0.2))
		w->to_s = w->from_s + tenths(r, 0.1, 3);
	if (chance(r, 0.15))
		w->fsync_s = tenths(r, 0.1, 2);
	if (w->kind == SIM_SHORT) {
		w->count = 1;
		w->per_s = spread(r, 1, 1000);
		w->total_bytes = pages(r, 4096, 1e6);
	} else if (w->kind == SIM_HOT) {
		w->count = w->count > 20 ? 20 : w->count;
		w->total_bytes = w->request_bytes + pages(r, 4096, 4e6);
	} else if (chance(r, 0.15)) {
		w->total_bytes = pages(r, 4096, 20e6);
	}
}

static void draw_action(struct sim_random *r, struct sim_action *a, struct sim_config *c)
{
	*a = (struct sim_action){.kind = (enum sim_action_kind)(sim_random_next(r) % 6)};
	a->device = (unsigned)(sim_random_next(r) % c->nr_devices);
	switch (a->kind) {
	case SIM_SET_LIMIT:
		a->value = (uint64_t)spread(r, 4096, 400e6);
		break;
	case SIM_SET_BACKGROUND:
		a->value = (uint64_t)spread(r, 1, 200e6);
		break;
	case SIM_SET_LAW:
		a->law = (enum throttle_law)(sim_random_next(r) % THROTTLE_NR_LAWS);
		break;
	case SIM_SET_DEVICE:
		a->settings = sim_device_default.settings;
		draw_settings(r, &a->settings, c->limit_bytes);
		break;
	case SIM_SYNC:
		break;
	case SIM_TRUNCATE:
		a->value = (uint64_t)spread(r, 1, 10000);
		break;
	}
}

void sim_swarm_draw(struct sim_random *r, struct sim_config *c)
{
	sim_config_init(c);
	c->seed = sim_random_next(r) % 1000000;
	c->law = (enum throttle_law)(sim_random_next(r) % THROTTLE_NR_LAWS);
	c->seconds = chance(r, 0.1) ? tenths(r, 20, 60) : tenths(r, 1, 8);
	c->warmup_s = 0;
	c->limit_bytes = (uint64_t)spread(r, 65536, 400e6);
	if (chance(r, 0.1)) /* a few pages */
		c->limit_bytes = sim_random_next(r) % (8 * SIM_PAGE);
	if (chance(r, 0.3) && c->limit_bytes > 1)
		c->background_bytes =
			(uint64_t)(sim_random_uniform(r) * (double)c->limit_bytes);
	if (chance(r, 0.2))
		c->writeback_centisecs = sim_random_next(r) % 200;
	if (chance(r, 0.2))
		c->expire_centisecs = 1 + sim_random_next(r) % 500;
	c->drain = chance(r, 0.5);
	c->nr_devices = chance(r, 0.6) ? 1 : 2 + (unsigned)(sim_random_next(r) % 3);
	for (unsigned i = 0; i < c->nr_devices; i++)
		draw_device(r, &c->devices[i], c->limit_bytes);
	c->nr_writers = 1 + (unsigned)(sim_random_next(r) % 4);
	for (unsigned i = 0; i < c->nr_writers; i++)
		draw_writer(r, &c->writers[i], c->nr_devices);
	c->nr_actions = chance(r, 0.5) ? 0 : 1 + (unsigned)(sim_random_next(r) % 4);
	for (unsigned i = 0; i < c->nr_actions; i++)
		draw_action(r, &c->actions[i], c);
	double at_s = 0;
	for (unsigned i = 0; i < c->nr_actions; i++)
		c->actions[i].at_s = at_s = round(10 * at_s + between(r, 0, 25)) / 10;
}

/* ---- what holds for any case, beside the invariants ---- */

static unsigned nr_specs(const struct sim_config *c)
{
	return c->nr_writers + (c->greedy_each ? c->nr_devices : 0);
}

static struct sim_writer_spec spec_at(const struct sim_config *c, unsigned i)
{
	if (i < c->nr_writers)
		return c->writers[i];
	return (struct sim_writer_spec){
		.kind = SIM_GREEDY,
		.count = (unsigned)c->greedy_each,
		.request_bytes = c->request_bytes,
		.device = i - c->nr_writers,
	};
}

/* What a device's writers meet with, over the whole time. */
struct circumstances {
	double least_limit, most_limit; /* bytes */
	bool strict, shares;		/* strict_limit; max_ratio */
	bool lowers;			/* the limit comes down */
};

static void see_settings(struct circumstances *cs, const struct device_settings *s)
{
	cs->strict = cs->strict || s->strict_limit;
	cs->shares = cs->shares || s->max_ratio < 100;
	if (s->max_bytes)
		cs->least_limit = fmin(cs->least_limit, (double)s->max_bytes);
	/* A limit in time follows what is measured; max_bytes may be new. */
	cs->lowers = cs->lowers || s->dirty_centisecs || s->max_bytes;
}

static struct circumstances circumstances(const struct sim_config *c, unsigned device)
{
	double limit = (double)c->limit_bytes;
	struct circumstances cs = {.least_limit = limit, .most_limit = limit};

	see_settings(&cs, &c->devices[device].settings);
	for (unsigned i = 0; i < c->nr_actions; i++) {
		const struct sim_action *a = &c->actions[i];
		if (a->kind == SIM_SET_DEVICE && a->device == device)
			see_settings(&cs, &a->settings);
		if (a->kind != SIM_SET_LIMIT)
			continue;
		cs.lowers = cs.lowers || (double)a->value < cs.most_limit;
		cs.least_limit = fmin(cs.least_limit, (double)a->value);
		cs.most_limit = fmax(cs.most_limit, (double)a->value);
	}
	return cs;
}

/* At its slowest. */
static double least_speed(const struct sim_device_spec *d)
{
	double rate = d->bytes_per_s;

	for (unsigned i = 0; i < d->nr_steps; i++)
		rate = fmin(rate, d->steps[i].bytes_per_s);
	return rate * exp(-3 * d->noise);
}

/* With a seek for each request. They carry as much as the least of its writers' at least, unless
 * an eighth of the limit is less (plan.c). */
static double least_rate(const struct sim_config *c, unsigned device)
{
	const struct sim_device_spec *d = &c->devices[device];
	double bytes = circumstances(c, device).least_limit / 8;

	for (unsigned i = 0; i < nr_specs(c); i++)
		if (spec_at(c, i).device == device)
			bytes = fmin(bytes, (double)spec_at(c, i).request_bytes);
	bytes = fmax(fmin(bytes, REQUEST_MOST), SIM_PAGE);
	double request_s = bytes / least_speed(d) + d->overhead_us / 1e6 +
		(d->seek_max_ms + d->rotation_ms) / 1e3;
	if (d->zone_bytes > 0)
		request_s += d->zone_pause_s * bytes / d->zone_bytes;
	if (d->stall_every_s > 0)
		request_s /= 1 - d->stall_s / d->stall_every_s;
	return bytes / request_s;
}

/* Devices share a budget: who writes to one may have to wait for the slowest. */
static double slowest_rate(const struct sim_config *c)
{
	double least = INFINITY;

	for (unsigned i = 0; i < c->nr_devices; i++)
		least = fmin(least, least_rate(c, i));
	return least;
}

/* Writers that want something at once, and bytes. Short-lived ones pile up where they ask for more
 * than the device writes. */
static void asked_at_once(
	const struct sim_config *c, double rate, double *ret_writers, double *ret_bytes)
{
	*ret_writers = *ret_bytes = 0;
	for (unsigned i = 0; i < nr_specs(c); i++) {
		struct sim_writer_spec w = spec_at(c, i);
		double count = w.count;
		if (w.kind == SIM_SHORT) {
			bool keeps_up = w.per_s * (double)w.total_bytes < rate / 2;
			count = fmin(ceil(w.per_s * (keeps_up ? 1 : c->seconds)), SIM_WRITERS);
		}
		*ret_writers += count;
		*ret_bytes += count * (double)w.request_bytes;
	}
}

/* Nothing completes before what is in flight has, and that may be sized for a faster device: in
 * flight is a quarter of the limit at most (plan.c). */
static double slowing_s(const struct sim_config *c)
{
	double longest = 0;

	for (unsigned i = 0; i < c->nr_devices; i++) {
		const struct sim_device_spec *d = &c->devices[i];
		double inflight = fmin(circumstances(c, i).most_limit / 4, FLUSH_WINDOW_MOST);
		double stops_s = d->stall_s + d->zone_pause_s;
		if (d->nr_steps || d->noise > 0 || d->cache_bytes > 0)
			stops_s += inflight / least_speed(d);
		longest = fmax(longest, stops_s);
	}
	return longest;
}

/* What a device has to write before anything of its own is let in:
 * - strict: all above its share, however the share came down;
 * - above its share by max_ratio, or because the limit came down (what is dirty is then a multiple
 *   of it): the last quarter between setpoint and limit, which belongs to the others; a limit that
 *   lags has its setpoint at half of it at least;
 * - beside other devices: all above its share, if they live in that quarter. */
static double drain_bytes(const struct sim_config *c, const struct circumstances *cs)
{
	if (cs->strict || c->nr_devices > 1)
		return cs->most_limit;
	return cs->shares || cs->lowers ? cs->most_limit / 8 : 0;
}

/* How long one of the writers may stand. A second for the start and the pauses, and four times
 * what is fair: what all ask for at once, as the slowest device writes it, or as much for each of
 * them as this one asks for. */
static double longest_stand_s(const struct sim_config *c, unsigned spec)
{
	struct sim_writer_spec w = spec_at(c, spec);
	struct circumstances cs = circumstances(c, w.device);
	double rate = slowest_rate(c), writers, bytes;

	asked_at_once(c, rate, &writers, &bytes);
	bytes = fmax(bytes, writers * (double)w.request_bytes);
	return 1.5 + slowing_s(c) + 4 * bytes / rate +
		drain_bytes(c, &cs) / least_rate(c, w.device);
}

static void judge_writers(const struct sim_config *c, struct sim_result *r)
{
	double longest_s[SIM_SPECS + SIM_DEVICES];

	for (unsigned i = 0; i < nr_specs(c); i++)
		longest_s[i] = longest_stand_s(c, i);
	for (unsigned i = 0; i < r->nr_writers; i++) {
		const struct sim_writer_result *w = &r->writers[i];
		double stood_s = (double)w->stand_max_us / 1e6;
		if (stood_s <= longest_s[w->spec])
			continue;
		snprintf(r->message, sizeof(r->message),
			"writer %u of spec %u stood for %.1f s, not %.1f at most", i, w->spec,
			stood_s, longest_s[w->spec]);
		return;
	}
}

static void judge_device(const struct sim_config *c, struct sim_result *r, unsigned i)
{
	const struct sim_device_result *d = &r->device[i];
	double written = (double)d->written_pages * SIM_PAGE;

	/* What its cache took in, and a little for the ends. */
	if (written > 1.001 * d->possible_bytes + c->devices[i].cache_bytes + 1048576)
		snprintf(r->message, sizeof(r->message),
			"device %u wrote %.0f bytes, it can %.0f", i, written,
			d->possible_bytes);
	if (d->idle > 0.1 && r->seconds > 2)
		snprintf(r->message, sizeof(r->message),
			"device %u was idle for %.0f %% of the time while much was dirty", i,
			100 * d->idle);
}

void sim_judge(const struct sim_config *c, struct sim_result *r)
{
	judge_writers(c, r);
	for (unsigned i = 0; i < r->nr_devices; i++)
		judge_device(c, r, i);
	if (r->over_limit_pages)
		snprintf(r->message, sizeof(r->message),
			"the pacer says it admitted %" PRIu64 " pages over the limit",
			r->over_limit_pages);
}

/* ---- running ---- */

static char line[8192]; /* of the case under way, for the handler too */

static void on_signal(int number)
{
	static const char before[] = "a crash, or it hangs\nreplay: ";

	if (write(STDERR_FILENO, before, sizeof(before) - 1) < 0 ||
		write(STDERR_FILENO, line, strlen(line)) < 0)
		_exit(3);
	signal(number, SIG_DFL);
	raise(number);
}

static bool print_line(const struct sim_config *c)
{
	FILE *f = fmemopen(line, sizeof(line), "w");

	if (!f)
		return false;
	sim_config_print(c, f);
	return fclose(f) == 0;
}

/* True if all went well. */
static bool run_case(struct sim_random *random, struct sim_config *c, struct sim_result *r)
{
	char message[400];

	sim_swarm_draw(random, c);
	if (!print_line(c) || sim_config_parse(c, line, message, sizeof(message)) < 0 ||
		sim_config_check(c, message, sizeof(message)) < 0) {
		fprintf(stderr, "cannot be read back: %s\n%s", message, line);
		return false;
	}
	alarm(MOST_CASE_S);
	int ret = sim_run(c, r);
	alarm(0);
	if (ret == 0)
		sim_judge(c, r);
	else if (!r->broken)
		snprintf(r->message, sizeof(r->message), "no memory");
	bool failed = r->message[0] != '\0';
	if (failed)
		fprintf(stderr, "%s\nreplay: %.*s --judge\n", r->message,
			(int)strcspn(line, "\n"), line);
	sim_result_free(r);
	return !failed;
}

static double clock_s(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

int sim_swarm(double seconds, uint64_t seed)
{
	static const int signals[] = {SIGABRT, SIGSEGV, SIGFPE, SIGBUS, SIGALRM};
	struct sim_random random = sim_random_make(seed, 7);
	struct sim_config *c = malloc(sizeof(*c));
	struct sim_result *r = malloc(sizeof(*r));
	double end = clock_s() + seconds;
	uint64_t hash = 0;
	int cases = 0, failed = 0;

	for (size_t i = 0; i < SIM_NR(signals); i++)
		signal(signals[i], on_signal);
	printf("swarm seed=%" PRIu64 "\n", seed);
	fflush(stdout);
	while (c && r && clock_s() < end) {
		failed += !run_case(&random, c, r);
		hash = hash * 31 + r->hash;
		cases++;
	}
	if (!c || !r || !cases)
		failed++;
	printf("%s swarm seed=%" PRIu64 ": %d cases, %d failed, hash=%016" PRIx64 "\n",
		failed ? "not ok" : "ok", seed, cases, failed, hash);
	free(c);
	free(r);
	return failed;
}
