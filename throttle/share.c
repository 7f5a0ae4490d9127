/* share.c - floating proportions: what part of the domain a device has earned.
 *
 * Events are pages whose write finished. Every three seconds all counts are halved, so
 *
 *	p_j = sum_i x_ij 2^-(i+1) / sum_i x_i 2^-(i+1)		i = 0: current period
 *
 * The domain is halved when somebody looks, a device when it completes something; until
 * then the reader scales by the periods the device has missed.
 */
#include "throttle/formulas.h"

#include <math.h>

#define MISSED_MAX 64 /* after that many halvings nothing is left */

static uint64_t periods_since(const struct throttle_domain *dom, uint64_t now_us)
{
	/* with nothing left to halve the clock of the periods stands still */
	if (dom->completions <= 1)
		return 0;
	return elapsed_us(now_us, dom->period_start_us) / SHARE_PERIOD_US;
}

static double halve(double count, uint64_t periods)
{
	if (periods == 0)
		return count;
	return periods >= MISSED_MAX ? 0 : ldexp(count, -(int)periods);
}

void throttle_age_domain(struct throttle_domain *dom, uint64_t now_us)
{
	uint64_t periods = periods_since(dom, now_us);

	if (periods == 0)
		return;
	/* the 1 it starts with stays: a lone device below its max_ratio would fade
	 * otherwise */
	dom->completions = at_least(halve(dom->completions, periods), 1);
	dom->period += periods;
	dom->period_start_us += periods * SHARE_PERIOD_US;
}

static void age_device(struct throttle_device *dev, const struct throttle_domain *dom)
{
	dev->completions = halve(dev->completions, dom->period - dev->period);
	dev->period = dom->period;
}

double throttle_proportion(
	const struct throttle_domain *dom, const struct throttle_device *dev, uint64_t now_us)
{
	uint64_t periods = periods_since(dom, now_us);
	double den = halve(dom->completions, periods);
	double num = halve(dev->completions, dom->period + periods - dev->period);

	return num / at_least(at_least(den, num), 1);
}

void throttle_completed(struct throttle_domain *dom, struct throttle_device *dev, double pages,
	double max_ratio, uint64_t now_us)
{
	double add = pages;

	if (dom->completions <= 1)
		dom->period_start_us = now_us;
	throttle_age_domain(dom, now_us);
	age_device(dev, dom);
	if (max_ratio < 1) {
		double room = dom->completions * max_ratio - dev->completions;

		add = clamp(room / (1 - max_ratio), 0, pages);
	}
	dev->completions += add;
	dom->completions += add;
}

void throttle_device_removed(
	struct throttle_domain *dom, struct throttle_device *dev, uint64_t now_us)
{
	throttle_age_domain(dom, now_us);
	age_device(dev, dom);
	dom->completions = at_least(dom->completions - dev->completions, 1);
	dev->completions = 0;
}

/* For a threshold and the quantity that is compared with it: T with D to pace,
 * B with R to start the flusher. */
double throttle_device_share(
	const struct throttle_sample *s, double proportion, double thresh, double dirty)
{
	double others = clamp(1 - s->sum_min_ratio, 0, 1);
	double share = thresh * (others * proportion + s->min_ratio);

	/* A device that has completed nothing yet has earned nothing: without the floor
	 * its writers would be held to a few pages. */
	if (thresh > dirty)
		share = at_least(share, (thresh - dirty) / (s->strict_limit ? 100 : SCOPE));
	/* Differs from Linux: the cap in bytes is compared as it is, not turned into a
	 * ratio of a threshold that may change. */
	share = at_most(share, at_most(thresh * s->max_ratio, s->cap_thresh));
	return at_least(share, 0);
}

struct throttle_thresholds throttle_device_thresholds(const struct throttle_domain *dom,
	const struct throttle_device *dev, const struct throttle_sample *s)
{
	struct budget b;

	throttle_budget_domain(&b, dom, dev, s);
	return (struct throttle_thresholds){
		.thresh = b.wb_thresh,
		.bg_thresh = b.wb_bg_thresh,
	};
}

double throttle_budget_background(const struct budget *b, const struct throttle_sample *s)
{
	double wb_reclaimable = at_least(s->wb_reclaimable, 0);
	double others = at_least(s->reclaimable - wb_reclaimable, 0);
	double share = throttle_device_share(s, b->proportion, b->bg_thresh, s->reclaimable);
	double target = at_most(b->bg_thresh - others, share);

	if (b->strict_limit) /* what is in flight counts, but cannot be submitted again */
		target = at_most(
			target, b->wb_bg_thresh - at_least(b->wb_dirty - wb_reclaimable, 0));
	return at_least(at_most(target, s->cap_thresh / 2), 0);
}

double throttle_background_target(const struct throttle_domain *dom,
	const struct throttle_device *dev, const struct throttle_sample *s)
{
	struct budget b;

	throttle_budget_domain(&b, dom, dev, s);
	return throttle_budget_background(&b, s);
}

bool throttle_over_background(const struct throttle_domain *dom,
	const struct throttle_device *dev, const struct throttle_sample *s)
{
	return s->wb_reclaimable > throttle_background_target(dom, dev, s);
}
