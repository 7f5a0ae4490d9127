/*- position.c - pos_ratio: where the dirty pages are, against where they should be.
 *
 *  pos_ratio
 *    2 |******
 *      |      *
 *      |       *
 *    1 |- - - - -*- - - -*            flat at the setpoint: small errors, small
 *      |         .        *           corrections
 *      |         .         *
 *    0 +-----+---+----------+*---->  dirty
 *         freerun setpoint limit
 *
 * Three factors for a common device: the cubic above over the whole budget, a line over
 * the device's own share of it, and a boost while the device has nearly run dry. A strict
 * device has a second cubic over its share instead, and the lower of both counts.
 */
#include "throttle/formulas.h"

#include <math.h>

/* The error is clamped before it is cubed, and the span is at least a page: with
 * thresholds of a few pages freerun, setpoint and limit coincide. */
double throttle_cubic(double setpoint, double dirty, double limit)
{
	double e = clamp((setpoint - dirty) / fmax(limit - setpoint, 1), -1, 1);

	return 1 + e * e * e;
}

/* For a lone device the line takes 8 seconds' worth of writing to fall from 1 to 0,
 * for one of many its own share. Never below 1/4, so that a device far above its share
 * drains at 3/4 of its speed while its writers go on. */
double throttle_device_line(const struct budget *b)
{
	double wb_thresh = fmin(b->wb_thresh, b->thresh);
	double x = b->thresh > 0 ? wb_thresh / b->thresh : 0;
	double wb_setpoint = b->setpoint * x;
	double span = x * (b->thresh - wb_thresh + SCOPE * b->avg_write_bandwidth);
	double intercept = wb_setpoint + span;

	if (span > 0 && b->wb_dirty < intercept - span / 4)
		return (intercept - b->wb_dirty) / span;
	return 0.25;
}

/* Writers are let in faster before the device runs out of work. */
double throttle_reserve(double wb_thresh, double wb_dirty)
{
	double reserve = wb_thresh / 2;

	if (wb_dirty >= reserve)
		return 1;
	return wb_dirty > reserve / SCOPE ? reserve / wb_dirty : SCOPE;
}

static double strict_cubic(const struct budget *b)
{
	double setpoint = throttle_freerun(b->wb_thresh, b->wb_bg_thresh);

	if (b->wb_dirty >= b->wb_thresh || setpoint <= 0 || setpoint >= b->wb_thresh)
		return 0;
	return throttle_cubic(setpoint, b->wb_dirty, b->wb_thresh);
}

/* Differs from Linux: bounded by 16. The line has no bound of its own where a device is
 * very slow and far below its share. */
double throttle_pos_ratio(const struct budget *b)
{
	double pos;

	if (b->dirty >= b->limit)
		return 0;
	pos = throttle_cubic(b->setpoint, b->dirty, b->limit);
	if (b->strict_limit)
		return fmin(pos, strict_cubic(b));
	pos *= throttle_device_line(b);
	pos *= throttle_reserve(fmin(b->wb_thresh, b->thresh), b->wb_dirty);
	return clamp(pos, 0, POS_RATIO_MAX);
}

void throttle_budget_derive(struct budget *b)
{
	double ceiling = throttle_freerun(b->thresh, b->bg_thresh);

	b->freerun = ceiling;
	b->setpoint = throttle_setpoint(ceiling, b->limit);
	if (b->strict_limit) {
		b->wb_setpoint = throttle_freerun(b->wb_thresh, b->wb_bg_thresh);
		b->below_freerun = b->wb_dirty <= b->wb_setpoint;
	} else {
		b->wb_setpoint = b->thresh > 0 ? b->setpoint * b->wb_thresh / b->thresh : 0;
		b->below_freerun = b->dirty <= b->freerun;
	}
	b->pos_ratio = throttle_pos_ratio(b);
}
