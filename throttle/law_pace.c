/* law_pace.c - the law of a daemon that knows its writers.
 *
 * The kernel finds avg / N by feedback, since it does not know N. Here the caller has a list
 * of writers, and the base rate is what the bandwidth leaves for each of those who are held,
 * once those who ask for less have had theirs:
 *
 *	target = (avg - U) / A		U: rate of all writers that are not held
 *					A: number of those that are
 *
 * One of A who asks for less than the target is soon not held any more and moves to U: the
 * level at which the rest is cut off rises, as water does in a vessel with steps.
 */
#include "throttle/formulas.h"

#include <math.h>

#define FILL_TAU_S 0.5	   /* memory of the base rate */
#define FILL_FALL 4.0	   /* a rate that is too high fills the budget: leave it sooner */
#define RATELIMIT_MIN 0.01 /* pages/s */
#define DEBT_S 1.0	   /* what a writer may owe besides its request, at its rate */
#define DRAIN_US 4000.0	   /* a pause that is always allowed */
#define SCATTER_MAX 8.0	   /* of 12: the half-span itself */
#define GOLDEN 0.6180339887498949

/* Never less than an eighth of the bandwidth for all of them: U is measured over a second and
 * may be of writers that are held from now on. */
double throttle_fill(double avg, double unthrottled_rate, double nr_throttled)
{
	double left = avg - at_least(unthrottled_rate, 0);

	if (!(nr_throttled > 0))
		return avg;
	return at_least(left, avg / SCOPE) / at_least(nr_throttled, 1);
}

double throttle_fill_step(double ratelimit, double target, double elapsed_s)
{
	double gain = 1 - exp(-elapsed_s / FILL_TAU_S);

	if (target < ratelimit)
		gain = at_most(FILL_FALL * gain, 1);
	return at_least(ratelimit + gain * (target - ratelimit), RATELIMIT_MIN);
}

static void tick(struct throttle_device *dev, const struct throttle_sample *s)
{
	double elapsed_s = us_to_s((double)elapsed_us(s->now_us, dev->fill_stamp_us));
	double target =
		throttle_fill(dev->avg_write_bandwidth, s->unthrottled_rate, s->nr_throttled);

	dev->dirty_ratelimit = throttle_fill_step(dev->dirty_ratelimit, target, elapsed_s);
	dev->balanced_dirty_ratelimit = target;
	dev->fill_stamp_us = s->now_us;
}

/* A pause is a delay in the loop that keeps the position: half of the time in which the device
 * writes what lies between setpoint and limit. */
static double max_pause(const struct budget *b)
{
	double us = throttle_half_span(b) / (2 * b->avg_write_bandwidth) * 1e6 + DRAIN_US;

	return at_most(throttle_max_pause(b->avg_write_bandwidth, b->wb_dirty), us);
}

/* A requests of n pages at random phases scatter the dirty pages by n sqrt(A / 12). Where that
 * comes near the half-span the position is noise: writers are let go below freerun and queue
 * at the limit, by chance. The gate paces there, and its queue is fair by itself. And a device
 * that has all but run dry must not wait for writers that are held, perhaps to a rate that was
 * measured when it was slow. */
static bool charges(const struct budget *b, const struct throttle_sample *s, double pages)
{
	double h = throttle_half_span(b);

	if (!b->strict_limit && b->wb_dirty < b->wb_thresh / (2 * SCOPE))
		return false;
	return pages * pages * at_least(s->nr_throttled, 1) <= SCATTER_MAX * h * h;
}

/* Writers who have waited at the gate or in freerun together would come back together, a
 * request later, and so on: one common rate keeps their phases. The first time that one of
 * them is held for long it pays for a part only, and the parts of all are spread evenly over
 * 0..1 (multiples of the golden ratio). */
static double stagger(struct throttle_device *dev)
{
	dev->stagger += GOLDEN;
	if (dev->stagger >= 1)
		dev->stagger -= 1;
	return dev->stagger;
}

/* While writers queue one gets what a pause pays for, at most. */
static double slice(const struct budget *b, const struct throttle_device *dev)
{
	return dev->dirty_ratelimit * b->task_ratio * us_to_s(max_pause(b));
}

const struct law throttle_pace = {
	.name = "pace",
	.curve = throttle_linear_cubic,
	.pos_max = PACE_POS_MAX,
	.pos_min = PACE_POS_MIN,
	.pauses_max = PACE_PAUSES_MAX,
	.debt_s = DEBT_S,
	.tick = tick,
	.max_pause = max_pause,
	.charges = charges,
	.stagger = stagger,
	.slice = slice,
};
