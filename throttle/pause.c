/* pause.c - how long, and how often, one writer is held. */
#include "throttle/formulas.h"

#include <math.h>

#define FIRST_PAUSE_US 10000.0 /* once more per doubling of the writers */
#define RATE_ZERO 1e-6	       /* pages/s */
#define US_MAX 1e18	       /* fits in an integer */

/* About the square root of the room that is left: the closer to the threshold, the sooner
 * the next look. */
double throttle_poll_interval(double thresh, double dirty)
{
	double room = thresh - dirty;

	if (room < 1)
		return 1;
	return ldexp(1, ilogb(room) / 2);
}

/* A pause must not outlast an eighth of the queued work, or the device runs dry
 * meanwhile. */
double throttle_max_pause(double avg, double wb_dirty)
{
	double us = wb_dirty / (SCOPE * at_least(avg, 1)) * 1e6 + TICK_US;

	return at_most(us, THROTTLE_MAX_PAUSE_US);
}

/* The more writers (the lower the base rate against the bandwidth), the longer and
 * rarer the pauses; counts below 32 pages are pushed up while the longest pause allows
 * it. */
struct pause_bounds throttle_pause_bounds(
	double avg, double ratelimit, double task_ratelimit, double max_pause_us)
{
	double r = at_least(ratelimit, 1);
	double doublings = at_least(ilogb(at_least(avg, 1)) - ilogb(r), 0);
	double t = at_most(FIRST_PAUSE_US * (1 + doublings), max_pause_us / 2 + TICK_US);
	double pages = r * us_to_s(t);
	struct pause_bounds ret;

	if (pages < POLL_PAGES) {
		t = max_pause_us;
		pages = r * us_to_s(t);
		if (pages > POLL_PAGES) {
			pages = POLL_PAGES;
			t = pages / r * 1e6;
		}
	}
	/* the rate imposed now is far below the base: fewer pages, so that one pause
	 * covers them */
	if (pages / (task_ratelimit + 1) * 1e6 > max_pause_us) {
		t = max_pause_us;
		pages = task_ratelimit * us_to_s(t);
	}
	ret.max_pause_us = max_pause_us;
	ret.min_pause_us = pages >= POLL_PAGES ? t / 2 + TICK_US : t;
	ret.min_pause_us = at_most(ret.min_pause_us, max_pause_us);
	ret.nr_dirtied_pause = pages;
	return ret;
}

static uint64_t to_us(double us)
{
	return us > 0 ? (uint64_t)(at_most(us, US_MAX) + 0.5) : 0;
}

/* Hold the reply; unpaid pages stay counted. */
static void hold(struct throttle_writer *w, uint64_t now_us, struct throttle_verdict *v,
	double pause_us, double unpaid, double next_interval)
{
	v->pause_us = to_us(pause_us);
	w->paused_when_us = now_us + v->pause_us;
	w->nr_dirtied = unpaid;
	w->nr_dirtied_pause = next_interval;
	v->again = unpaid > 0;
}

/* Too short to be worth a pause: keep it as virtual time, for the next period to begin
 * later. */
static void bank(struct throttle_writer *w, uint64_t now_us, double pause_us, double period_us)
{
	if (pause_us < -CREDIT_US) {
		w->paused_when_us = now_us;
		w->nr_dirtied = 0;
	} else if (period_us >= TICK_US) {
		w->paused_when_us += to_us(period_us);
		w->nr_dirtied = 0;
	} else if (w->nr_dirtied_pause <= w->nr_dirtied) {
		/* far too few pages for one look: look after more of them */
		w->nr_dirtied_pause += w->nr_dirtied;
	}
}

/* Period and think time of the pages counted so far. Returns the pause that is due. */
static double due_us(struct throttle_writer *w, uint64_t now_us, struct throttle_verdict *v)
{
	if (w->paused_when_us == 0)
		w->paused_when_us = now_us;
	v->think_us = (double)now_us - (double)w->paused_when_us;
	v->period_us = w->nr_dirtied / at_least(v->task_ratelimit, RATE_ZERO) * 1e6;
	return v->period_us - v->think_us;
}

/* The caller has filled task_ratelimit and the bounds into the verdict. charge_max: pages
 * that may stay unpaid; pay_min: pages that one pause pays for at least.
 *
 * Differs from Linux: what one pause does not cover is carried as pages, not as time, so
 * that it is priced at the rate in force when it is paid; and a request arrives whole, so
 * that up to its size is carried where Linux, looking every few pages, carries one pause.
 * A request is over after PAUSES_MAX of them at the latest, also where the rate is 0 for
 * ever because another device holds the domain at its limit. */
void throttle_decide(struct throttle_writer *w, uint64_t now_us, struct throttle_verdict *v,
	double charge_max, double pay_min, double next_interval)
{
	double pause = due_us(w, now_us, v);
	double covered = us_to_s(v->max_pause_us) * v->task_ratelimit;
	double unpaid;

	if (v->task_ratelimit <= RATE_ZERO) {
		v->kind = THROTTLE_BLOCKED;
		v->period_us = v->max_pause_us;
		unpaid = at_most(w->nr_dirtied, charge_max) - pay_min;
		hold(w, now_us, v, v->max_pause_us, at_least(unpaid, 0), next_interval);
		return;
	}
	v->kind = THROTTLE_PAUSE;
	if (pause < v->min_pause_us) {
		v->kind = THROTTLE_BANKED;
		bank(w, now_us, pause, v->period_us);
	} else if (pause > v->max_pause_us) {
		unpaid = us_to_s(pause) * v->task_ratelimit - covered;
		unpaid = at_most(unpaid, at_least(charge_max, covered));
		unpaid = at_most(unpaid, w->nr_dirtied - pay_min);
		hold(w, now_us, v, v->max_pause_us, at_least(unpaid, 0), next_interval);
	} else {
		hold(w, now_us, v, pause, 0, next_interval);
	}
}

/* A small writer is let go, but its pages cost it the same virtual time, up to one pause
 * of debt: it cannot save up credit here and spend it as a burst. */
void throttle_exempt(struct throttle_writer *w, uint64_t now_us, struct throttle_verdict *v)
{
	double pause = due_us(w, now_us, v);

	v->kind = THROTTLE_EXEMPT;
	if (pause < -CREDIT_US)
		pause = 0;
	w->paused_when_us = to_us((double)now_us + at_most(pause, v->max_pause_us));
	w->nr_dirtied = 0;
}
