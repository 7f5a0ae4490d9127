/* balance.c - one decision, from the sample to the verdict. */
#include "throttle/formulas.h"

/* Where the device's share counts, the writers of a device above it are looked at more
 * often. */
static bool exceeded(const struct budget *b)
{
	return b->wb_dirty > b->wb_thresh && (b->dirty > b->thresh || b->strict_limit);
}

static double poll_interval(const struct budget *b)
{
	if (b->strict_limit)
		return throttle_poll_interval(b->wb_thresh, b->wb_dirty);
	return throttle_poll_interval(b->thresh, b->dirty);
}

static bool position_allows_exempt(const struct budget *b)
{
	if (b->strict_limit &&
		b->wb_dirty >= b->wb_setpoint + (b->wb_thresh - b->wb_setpoint) / 2)
		return false;
	return b->dirty < b->setpoint + (b->limit - b->setpoint) / 2;
}

/* Differs from Linux: a request of at most 64 KiB from a writer far below its share is
 * not held. The base rate is common to all writers; an append of one page would wait for
 * the bulk copy beside it. */
bool throttle_is_small(
	const struct throttle_device *dev, double nr_writers, double rate, double request_pages)
{
	double share = dev->dirty_ratelimit;

	if (nr_writers > 0)
		share = at_most(share, dev->avg_write_bandwidth / nr_writers);
	return request_pages <= EXEMPT_PAGES && rate < share / SCOPE;
}

static void report_budget(struct throttle_verdict *v, const struct budget *b)
{
	v->thresh = b->thresh;
	v->bg_thresh = b->bg_thresh;
	v->dirty_limit = b->limit;
	v->freerun = b->freerun;
	v->setpoint = b->setpoint;
	v->wb_thresh = b->wb_thresh;
	v->wb_bg_thresh = b->wb_bg_thresh;
	v->wb_setpoint = b->wb_setpoint;
	v->pos_ratio = b->pos_ratio;
}

static void report_rates(
	struct throttle_verdict *v, const struct throttle_device *dev, const struct budget *b)
{
	v->dirty_ratelimit = dev->dirty_ratelimit;
	v->balanced_dirty_ratelimit = dev->balanced_dirty_ratelimit;
	v->task_ratelimit = dev->dirty_ratelimit * b->task_ratio;
}

/* What one decision is about besides the sample. */
struct request {
	double nr_pages;   /* newly dirty */
	double charge_max; /* most pages that may stay unpaid after a pause */
	bool again;	   /* there are unpaid pages: look whatever their number */
	bool small;	   /* the writer may be exempt */
};

/* Above the freerun ceiling and due for a look. */
static void pace(struct throttle_device *dev, struct throttle_writer *w, const struct budget *b,
	const struct throttle_sample *s, const struct request *req, struct throttle_verdict *v)
{
	const struct law *law = throttle_law(b->law);
	struct pause_bounds bounds;
	double charge = 0, pay_min;

	if (law->held && !req->small)
		law->held(dev, b, s);
	report_rates(v, dev, b);
	bounds = throttle_pause_bounds(b->avg_write_bandwidth, dev->dirty_ratelimit,
		v->task_ratelimit, law->max_pause(b));
	v->min_pause_us = bounds.min_pause_us;
	v->max_pause_us = bounds.max_pause_us;
	if (req->small) {
		throttle_exempt(w, s->now_us, v);
		return;
	}
	if (law->charges(b, s, w->nr_charged))
		charge = at_least(req->charge_max, v->task_ratelimit * law->debt_s);
	/* a debt may be many times the request: it takes pauses_max of the longest pauses */
	pay_min = at_least(
		w->nr_charged, w->nr_held * bounds.max_pause_us / THROTTLE_MAX_PAUSE_US);
	throttle_decide(
		w, s->now_us, v, charge, pay_min / law->pauses_max, bounds.nr_dirtied_pause);
	if (law->stagger && v->again && !w->staggered) {
		w->nr_dirtied *= law->stagger(dev);
		w->staggered = true;
	}
}

static void pass_freerun(struct throttle_writer *w, uint64_t now_us, double interval)
{
	w->paused_when_us = now_us;
	w->nr_dirtied = 0;
	w->nr_dirtied_pause = interval;
	w->staggered = false;
}

static bool due(const struct throttle_writer *w, const struct budget *b)
{
	double interval = at_least(w->nr_dirtied_pause, 1);

	if (exceeded(b))
		interval = at_most(interval, POLL_EXCEEDED_PAGES);
	return w->nr_dirtied >= interval;
}

static void balance(struct throttle_domain *dom, struct throttle_device *dev,
	struct throttle_writer *w, const struct throttle_sample *s, struct request req,
	struct throttle_verdict *v)
{
	struct budget global, own, *b = &global;
	bool capped, freerun, look;

	throttle_follow_limits(dom, dev, s);
	throttle_budget_domain(&global, dom, dev, s);
	throttle_budget_position(&global);
	freerun = global.below_freerun;
	req.small = req.small && position_allows_exempt(&global);
	capped = throttle_budget_cap(&own, dom, dev, s);
	if (capped) {
		throttle_budget_position(&own);
		freerun = freerun && own.below_freerun;
		req.small = req.small && position_allows_exempt(&own);
		if (own.pos_ratio < global.pos_ratio)
			b = &own;
	}

	w->nr_dirtied += req.nr_pages;
	look = req.again || due(w, b);
	*v = (struct throttle_verdict){
		.kind = freerun ? THROTTLE_FREERUN : THROTTLE_UNCHECKED,
		.nr_dirtied = w->nr_dirtied,
		.nr_dirtied_pause = w->nr_dirtied_pause,
		.capped = b == &own,
		.start_background = (look && !freerun) ||
			s->wb_reclaimable > throttle_budget_background(&global, s),
	};
	report_budget(v, b);
	report_rates(v, dev, b);
	if (look && freerun) {
		double interval = poll_interval(&global);

		if (capped)
			interval = at_most(interval, poll_interval(&own));
		pass_freerun(w, s->now_us, interval);
	} else if (look) {
		pace(dev, w, b, s, &req, v);
	}
}

void throttle_balance(struct throttle_domain *dom, struct throttle_device *dev,
	struct throttle_writer *w, const struct throttle_sample *s, double nr_pages,
	double request_pages, struct throttle_verdict *ret_verdict)
{
	double pages = at_least(nr_pages, 0);
	double rate = throttle_writer_rate(w, at_least(pages, request_pages), s->now_us);
	struct request req = {
		.nr_pages = pages,
		.charge_max = pages,
		.small = throttle_is_small(dev, s->nr_writers, rate, request_pages),
	};

	w->nr_charged = pages;
	w->nr_held = 0;
	balance(dom, dev, w, s, req, ret_verdict);
	w->nr_held = w->nr_dirtied;
}

void throttle_balance_again(struct throttle_domain *dom, struct throttle_device *dev,
	struct throttle_writer *w, const struct throttle_sample *s,
	struct throttle_verdict *ret_verdict)
{
	struct request req = {.charge_max = w->nr_dirtied, .again = true};

	balance(dom, dev, w, s, req, ret_verdict);
}
