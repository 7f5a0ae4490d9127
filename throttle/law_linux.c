/* law_linux.c - the kernel's law: the base rate, what each of the device's writers may dirty
 * per second, is found by feedback.
 *
 * When N writers each run at q = ratelimit * pos_ratio, they dirty d = N q, and
 *
 *	balanced = q * avg / d  ->  avg / N
 *
 * whatever pos_ratio was. (With the ratelimit in place of q, pos_ratio 1/2 at twice the
 * fair rate would look balanced.) The ratelimit steps towards it, and only where the error
 * in rate and the error in position point the same way.
 */
#include "throttle/formulas.h"

#include <math.h>

#define SHIFT_MAX 64.0 /* a step halved that often is none */

double throttle_balanced(double task_ratelimit, double avg, double dirty_rate)
{
	return at_most(task_ratelimit * avg / at_least(dirty_rate, 1), avg);
}

/* An eighth of the way, and exponentially less the smaller the relative error: below
 * about 5 % nothing moves.
 *
 * Differs from Linux: the shift keeps its fraction. Rounded up to whole pages per second
 * the smallest step would be a fifth of the rate for a writer that is held to five. */
double throttle_ratelimit_step(double ratelimit, double balanced_before, double balanced,
	double task_ratelimit, bool may_rise, bool may_fall)
{
	double step = 0, shift, x;

	if (may_rise) {
		x = at_most(at_most(balanced_before, balanced), task_ratelimit);
		step = at_least(x - ratelimit, 0);
	}
	if (may_fall) {
		x = at_least(at_least(balanced_before, balanced), task_ratelimit);
		step = at_least(ratelimit - x, 0);
	}
	shift = floor(ratelimit / (2 * step + 1));
	step = shift < SHIFT_MAX ? ldexp(step, -(int)shift) / SCOPE : 0;
	ratelimit += ratelimit < balanced ? step : -step;
	return at_least(ratelimit, 1);
}

/* Only from a decision about a writer who is held: in freerun nobody runs at q. */
void throttle_update_ratelimit(
	struct throttle_device *dev, const struct budget *b, const struct throttle_sample *s)
{
	uint64_t elapsed = elapsed_us(s->now_us, dev->ratelimit_stamp_us);
	double dirtied = 0, task_ratelimit, balanced;
	bool below;

	if (elapsed < THROTTLE_INTERVAL_US)
		return;
	if (s->wb_dirtied > dev->dirtied_stamp)
		dirtied = (double)(s->wb_dirtied - dev->dirtied_stamp);
	dev->ratelimit_stamp_us = s->now_us;
	dev->dirtied_stamp = s->wb_dirtied;
	/* Differs from Linux: nobody was held for so long that the count says nothing
	 * about held writers; begin a new one. */
	if (elapsed > IDLE_CUT_US)
		return;

	task_ratelimit = dev->dirty_ratelimit * b->pos_ratio + 1;
	balanced = throttle_balanced(
		task_ratelimit, b->avg_write_bandwidth, dirtied / us_to_s((double)elapsed));
	if (b->strict_limit)
		below = b->wb_dirty < b->wb_setpoint;
	else
		/* Differs from Linux: a device in its reserve is not what holds the
		 * domain at the limit. Its rate must not follow the position another
		 * device causes. */
		below = b->dirty < b->setpoint || throttle_in_reserve(b);
	dev->dirty_ratelimit = throttle_ratelimit_step(dev->dirty_ratelimit,
		dev->balanced_dirty_ratelimit, balanced, task_ratelimit, below, !below);
	dev->balanced_dirty_ratelimit = balanced;
}

static double max_pause(const struct budget *b)
{
	return throttle_max_pause(b->avg_write_bandwidth, b->wb_dirty);
}

/* A request is charged to its last page only where the position can tell how it was
 * meant. When one request alone moves it across half the scope, the base rate would wind
 * down to nothing; the gate paces there, and its queue is fair by itself. And a device in
 * its reserve is held back for what others have piled up: its writers pay for one pause,
 * or it would run dry. */
static bool charges(const struct budget *b, const struct throttle_sample *s, double pages)
{
	return !throttle_in_reserve(b) && pages < throttle_half_span(b);
}

const struct law throttle_linux = {
	.name = "linux",
	.curve = throttle_cubic,
	.pos_max = POS_RATIO_MAX,
	.pauses_max = PAUSES_MAX,
	.held = throttle_update_ratelimit,
	.max_pause = max_pause,
	.charges = charges,
};
