/* thresholds.c - from the knobs to the points of the control line. */
#include "throttle/formulas.h"

#include <math.h>

#define PAGES_MAX 4294967295.0	  /* keeps products far from any overflow, as in Linux */
#define FOLLOW_KEEP (31.0 / 32.0) /* part of the gap that is left after one interval */
#define FOLLOW_MAX 4.0		  /* most intervals made up for at once */
#define SNAP_PAGES 1.0

static double knob_pages(uint64_t bytes, double ratio, double dirtyable)
{
	if (bytes != 0)
		return ceil((double)bytes / THROTTLE_PAGE_SIZE);
	return at_least(0, ratio / 100 * dirtyable);
}

struct throttle_thresholds throttle_domain_thresholds(
	const struct throttle_knobs *knobs, double dirtyable_pages)
{
	struct throttle_thresholds t;
	double dirtyable = at_least(dirtyable_pages, 1);

	t.thresh = knob_pages(knobs->dirty_bytes, knobs->dirty_ratio, dirtyable);
	t.bg_thresh = knob_pages(
		knobs->dirty_background_bytes, knobs->dirty_background_ratio, dirtyable);
	t.thresh = at_most(t.thresh, PAGES_MAX);
	if (t.bg_thresh >= t.thresh)
		t.bg_thresh = t.thresh / 2;
	return t;
}

double throttle_freerun(double thresh, double bg_thresh)
{
	return (thresh + bg_thresh) / 2;
}

double throttle_setpoint(double freerun, double dirty_limit)
{
	return (freerun + dirty_limit) / 2;
}

/* The background threshold that the control line and the flusher use. With a gap that
 * drains in less than the longest pause all writers sleep at the limit in lock-step while
 * the flusher has already stopped: keep two pauses' worth of work between B and T.
 *
 * Differs from Linux: there the gap is whatever was configured. */
double throttle_effective_background(double thresh, double bg_thresh, double avg)
{
	double gap = avg * 2 * us_to_s(THROTTLE_MAX_PAUSE_US);
	double bg = clamp(bg_thresh, 0, PAGES_MAX);

	if (bg >= thresh)
		bg = thresh / 2;
	return at_most(bg, at_least(thresh / 2, thresh - gap));
}

/* A limit below one page could never admit anything. */
double throttle_hard_limit(const struct throttle_domain *dom, const struct throttle_sample *s)
{
	return at_least(at_least(dom->dirty_limit, s->thresh), 1);
}

double throttle_hard_cap(const struct throttle_device *dev, const struct throttle_sample *s)
{
	double limit = dev->cap_limit;

	if (s->cap_thresh >= THROTTLE_NO_CAP)
		return THROTTLE_NO_CAP;
	if (limit >= THROTTLE_NO_CAP) /* the cap appeared since the last tick */
		limit = s->wb_dirty;
	return at_least(at_least(limit, s->cap_thresh), 1);
}

/* Up at once, down by 1/32 of the gap per interval, never below what is dirty, so
 * that a collapsed threshold slows writers instead of stopping them.
 *
 * Differs from Linux: the step is per elapsed time, not per call, and the last page is
 * given up at once. In integers the kernel's limit stays up to 31 pages above its
 * threshold for good. */
double throttle_follow(double limit, double thresh, double dirty, double elapsed_s)
{
	double intervals = at_most(elapsed_s / us_to_s(THROTTLE_INTERVAL_US), FOLLOW_MAX);
	double to = at_least(thresh, dirty);

	if (limit <= thresh)
		return thresh;
	if (limit <= to)
		return limit;
	limit = to + (limit - to) * pow(FOLLOW_KEEP, intervals);
	return limit - to < SNAP_PAGES ? to : limit;
}

static void follow(
	double *limit, uint64_t *stamp_us, double thresh, double dirty, uint64_t now_us)
{
	uint64_t elapsed = elapsed_us(now_us, *stamp_us);

	if (*limit < thresh)
		*limit = thresh;
	if (elapsed < THROTTLE_INTERVAL_US)
		return;
	*limit = throttle_follow(*limit, thresh, dirty, us_to_s((double)elapsed));
	*stamp_us = now_us;
}

void throttle_follow_limits(struct throttle_domain *dom, struct throttle_device *dev,
	const struct throttle_sample *s)
{
	follow(&dom->dirty_limit, &dom->limit_stamp_us, s->thresh, s->dirty, s->now_us);

	if (s->cap_thresh >= THROTTLE_NO_CAP) {
		dev->cap_limit = THROTTLE_NO_CAP;
		return;
	}
	if (dev->cap_limit >= THROTTLE_NO_CAP) {
		dev->cap_limit = at_least(s->cap_thresh, s->wb_dirty);
		dev->cap_stamp_us = s->now_us;
	}
	follow(&dev->cap_limit, &dev->cap_stamp_us, s->cap_thresh, s->wb_dirty, s->now_us);
}

static void lower(double *limit, double thresh, double dirty, double pages)
{
	double to = at_least(thresh, dirty);

	if (*limit > to)
		*limit = at_least(*limit - pages / 2, to);
}

void throttle_lower_limits(struct throttle_domain *dom, struct throttle_device *dev,
	const struct throttle_sample *s, double pages)
{
	pages = at_least(pages, 0);
	lower(&dom->dirty_limit, s->thresh, s->dirty, pages);
	if (s->cap_thresh < THROTTLE_NO_CAP && dev->cap_limit < THROTTLE_NO_CAP)
		lower(&dev->cap_limit, s->cap_thresh, s->wb_dirty, pages);
}

void throttle_limits_changed(struct throttle_domain *dom, struct throttle_device *dev,
	const struct throttle_sample *s)
{
	/* What somebody sets is in force at once, as far as what is already dirty allows; only
	 * from there the limit is followed. */
	throttle_follow_limits(dom, dev, s);
	dom->dirty_limit = at_least(s->thresh, s->dirty);
	if (s->cap_thresh < THROTTLE_NO_CAP)
		dev->cap_limit = at_least(s->cap_thresh, s->wb_dirty);
}

void throttle_domain_init(struct throttle_domain *dom, uint64_t now_us)
{
	*dom = (struct throttle_domain){
		.limit_stamp_us = now_us,
		.completions = 1,
		.period_start_us = now_us,
	};
}

void throttle_budget_domain(struct budget *b, const struct throttle_domain *dom,
	const struct throttle_device *dev, const struct throttle_sample *s)
{
	double avg = at_least(dev->avg_write_bandwidth, 1);
	double thresh = at_least(s->thresh, 0);
	double proportion = throttle_proportion(dom, dev, s->now_us);

	*b = (struct budget){
		.law = dom->law,
		.thresh = thresh,
		.bg_thresh = throttle_effective_background(thresh, s->bg_thresh, avg),
		.limit = throttle_hard_limit(dom, s),
		/* counters may be a page apart: never less than the part of one device */
		.dirty = at_least(at_least(s->dirty, s->wb_dirty), 0),
		.wb_thresh = throttle_device_share(s, proportion, thresh, s->dirty),
		.wb_dirty = at_least(s->wb_dirty, 0),
		.proportion = proportion,
		.avg_write_bandwidth = avg,
		.strict_limit = s->strict_limit,
	};
	if (thresh > 0)
		b->wb_bg_thresh = b->wb_thresh * b->bg_thresh / thresh;
	throttle_budget_points(b);
}

/* The device's own limit is a domain with one device in it, as a cgroup is for Linux. */
bool throttle_budget_cap(struct budget *b, const struct throttle_domain *dom,
	const struct throttle_device *dev, const struct throttle_sample *s)
{
	double cap = at_least(s->cap_thresh, 0);
	double wb_dirty = at_least(s->wb_dirty, 0);

	if (s->cap_thresh >= THROTTLE_NO_CAP)
		return false;
	*b = (struct budget){
		.law = dom->law,
		.thresh = cap,
		.bg_thresh = cap / 2,
		.limit = throttle_hard_cap(dev, s),
		.dirty = wb_dirty,
		.wb_thresh = cap,
		.wb_bg_thresh = cap / 2,
		.wb_dirty = wb_dirty,
		.proportion = 1,
		.avg_write_bandwidth = at_least(dev->avg_write_bandwidth, 1),
	};
	throttle_budget_points(b);
	return true;
}
