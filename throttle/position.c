/*- position.c - pos_ratio: where the dirty pages are, against where they should be.
 *
 *  linux                                    pace
 *    2 |******                                2 |*
 *      |      *                                 |  *
 *      |       *                                |    *
 *    1 |- - - - -*- - - -*                    1 |- - - - *
 *      |         .        *                     |        .   *
 *      |         .         *                    |        .     *
 *    0 +-----+---+----------+*---->  dirty    0 +--+-----+------*---->  dirty
 *         freerun setpoint limit                freerun setpoint limit
 *
 * Three factors for a common device: the curve above over the whole budget, a line over
 * the device's own share of it, and a boost while the device has nearly run dry. A strict
 * device has a second curve over its share instead, and the lower of both counts.
 */
#include "throttle/formulas.h"

#define LINEAR 0.25 /* slope of pace at the setpoint: settles in h / (LINEAR avg) */

/* The error is clamped before it is cubed, and the span is at least a page: with
 * thresholds of a few pages freerun, setpoint and limit coincide. */
double throttle_cubic(double setpoint, double dirty, double limit)
{
	double e = clamp((setpoint - dirty) / at_least(limit - setpoint, 1), -1, 1);

	return 1 + e * e * e;
}

/* Differs from Linux: with a line through the setpoint an error fades with a time constant,
 * h / (LINEAR avg), in place of the creep of a cubic that is flat there, and an error of the
 * base rate costs that much more position and not its cube root. */
double throttle_linear_cubic(double setpoint, double dirty, double limit)
{
	double e = clamp((setpoint - dirty) / at_least(limit - setpoint, 1), -1, 1);

	return 1 + LINEAR * e + (1 - LINEAR) * e * e * e;
}

/* For a lone device the line takes 8 seconds' worth of writing to fall from 1 to 0,
 * for one of many its own share. Never below 1/4, so that a device far above its share
 * drains at 3/4 of its speed while its writers go on. */
double throttle_device_line(const struct budget *b)
{
	double wb_thresh = at_most(b->wb_thresh, b->thresh);
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

/* h: from the setpoint to the limit. */
double throttle_half_span(const struct budget *b)
{
	if (b->strict_limit)
		return at_least(b->wb_thresh - b->wb_setpoint, 0);
	return at_least(b->limit - b->setpoint, 0);
}

/* Held back by what others have piled up: the device has less than half of its share. */
bool throttle_in_reserve(const struct budget *b)
{
	return !b->strict_limit && b->wb_dirty < b->wb_thresh / 2;
}

static double strict_curve(const struct law *law, const struct budget *b)
{
	double setpoint = throttle_freerun(b->wb_thresh, b->wb_bg_thresh);

	if (b->wb_dirty >= b->wb_thresh || setpoint <= 0 || setpoint >= b->wb_thresh)
		return 0;
	return law->curve(setpoint, b->wb_dirty, b->wb_thresh);
}

/* Differs from Linux: bounded, by 16. The line has no bound of its own where a device is
 * very slow and far below its share. */
double throttle_pos_ratio(const struct budget *b)
{
	const struct law *law = throttle_law(b->law);
	double pos;

	if (b->dirty >= b->limit)
		return 0;
	pos = law->curve(b->setpoint, b->dirty, b->limit);
	if (b->strict_limit)
		return at_most(pos, strict_curve(law, b));
	pos *= throttle_device_line(b);
	pos *= throttle_reserve(at_most(b->wb_thresh, b->thresh), b->wb_dirty);
	return clamp(pos, 0, law->pos_max);
}

void throttle_budget_points(struct budget *b)
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
}

void throttle_budget_position(struct budget *b)
{
	b->pos_ratio = throttle_pos_ratio(b);
	b->task_ratio = at_least(b->pos_ratio, throttle_law(b->law)->pos_min);
}
