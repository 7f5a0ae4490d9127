/* bandwidth.c - how fast a device writes, measured from its completions. */
#include "throttle/formulas.h"

#include <math.h>

#define CONFIDENT_PAGES 8192.0 /* 32 MiB */

void throttle_device_init(struct throttle_device *dev, double first_bw, uint64_t now_us)
{
	double bw = at_least(first_bw, 1);

	*dev = (struct throttle_device){
		.write_bandwidth = bw,
		.avg_write_bandwidth = bw,
		.bw_stamp_us = now_us,
		.dirty_ratelimit = bw,
		.balanced_dirty_ratelimit = bw,
		.ratelimit_stamp_us = now_us,
		.cap_limit = THROTTLE_NO_CAP,
		.cap_stamp_us = now_us,
	};
}

/* bw remembers BW_PERIOD_S, avg follows only where bw has moved away twice in a row.
 *
 * Differs from Linux: the eighth that avg moves by is per THROTTLE_INTERVAL_US elapsed,
 * not per call, so that a late tick weighs what it lasted. */
void throttle_bandwidth_step(double *bw, double *avg, double pages, double busy_s)
{
	double old = *bw, gain;

	if (busy_s > BW_PERIOD_S) {
		*bw = pages / busy_s;
		*avg = at_least(*bw, 1);
		return;
	}
	*bw = (pages + old * (BW_PERIOD_S - busy_s)) / BW_PERIOD_S;
	gain = 1 - pow(1 - 1 / SCOPE, busy_s / us_to_s(THROTTLE_INTERVAL_US));
	if ((*avg > old && old >= *bw) || (*avg < old && old <= *bw))
		*avg += (old - *avg) * gain;
	*avg = at_least(*avg, 1);
}

/* Differs from Linux: the first two busy seconds are averaged plainly, so a first guess
 * that is wrong by a factor of twenty is gone with the first sample instead of after
 * twelve seconds. */
static void fast_start(struct throttle_device *dev)
{
	double bw = at_least(dev->busy_pages / dev->busy_s, 1);

	dev->write_bandwidth = bw;
	dev->avg_write_bandwidth = bw;
	dev->dirty_ratelimit = at_most(dev->dirty_ratelimit, bw);
	dev->balanced_dirty_ratelimit = at_most(dev->balanced_dirty_ratelimit, bw);
}

/* With nothing left to submit the device waited for its writers, and what it did is only
 * a lower bound of what it can. Unless they wait for it in turn: a flusher with a deep
 * queue takes all of a small budget in flight, and there R = 0 goes on for ever.
 *
 * Differs from Linux: there such a sample lowers the estimate all the same. */
static bool lower_bound(const struct throttle_domain *dom, const struct throttle_device *dev,
	const struct throttle_sample *s)
{
	struct throttle_thresholds wb;

	if (s->wb_reclaimable > 0)
		return false;
	wb = throttle_device_thresholds(dom, dev, s);
	return s->wb_dirty <= throttle_freerun(wb.thresh, wb.bg_thresh);
}

static void measure(struct throttle_device *dev, bool bound, double pages, double busy_s)
{
	bool starting = dev->busy_s < FAST_START_S;

	if (bound && pages / busy_s < dev->write_bandwidth)
		return;
	dev->busy_s += busy_s;
	dev->busy_pages += pages;
	if (starting)
		fast_start(dev);
	else
		throttle_bandwidth_step(
			&dev->write_bandwidth, &dev->avg_write_bandwidth, pages, busy_s);
}

static void update_bandwidth(const struct throttle_domain *dom, struct throttle_device *dev,
	const struct throttle_sample *s)
{
	double busy_s = us_to_s((double)elapsed_us(s->wb_busy_us, dev->busy_stamp));
	double pages = 0;

	/* Too little work to tell: go on collecting, an idle device may take minutes for
	 * it. */
	if (busy_s < MIN_BUSY_S)
		return;
	/* ticks are the caller's timer and may be early; a quarter of an interval is no
	 * sample */
	if (elapsed_us(s->now_us, dev->bw_stamp_us) < THROTTLE_INTERVAL_US * 3 / 4)
		return;
	if (s->wb_written > dev->written_stamp)
		pages = (double)(s->wb_written - dev->written_stamp);
	measure(dev, lower_bound(dom, dev, s), pages, busy_s);
	dev->bw_stamp_us = s->now_us;
	dev->written_stamp = s->wb_written;
	dev->busy_stamp = s->wb_busy_us;
}

void throttle_tick(struct throttle_domain *dom, struct throttle_device *dev,
	const struct throttle_sample *s)
{
	const struct law *law = throttle_law(dom->law);

	throttle_age_domain(dom, s->now_us);
	throttle_follow_limits(dom, dev, s);
	update_bandwidth(dom, dev, s);
	if (law->tick)
		law->tick(dev, s);
}

double throttle_confidence(const struct throttle_device *dev)
{
	return clamp(dev->busy_s / FAST_START_S, 0, 1) *
		clamp(dev->busy_pages / CONFIDENT_PAGES, 0, 1);
}

double throttle_reference_bandwidth(const struct throttle_device *dev, double prior)
{
	double conf = throttle_confidence(dev);

	return at_least(exp(conf * log(at_least(dev->avg_write_bandwidth, 1)) +
				(1 - conf) * log(at_least(prior, 1))),
		1);
}
