/* admission.c - the gate: how many pages may become dirty now.
 *
 * Differs from Linux: there a writer dirties first and is held afterwards, so that N
 * writers can pass the limit by N requests. Requests here are whole and up to 1 MiB; the
 * gate is exact.
 */
#include "throttle/formulas.h"

#include <math.h>

/* 1 EiB. Sums of whole pages are exact far beyond it, but not for ever. */
#define GATE_PAGES_MAX 281474976710656.0

/* A device above its share leaves the last part of the scope to the others. A dead device
 * would otherwise take the room that a good one frees, page by page and for ever, until
 * the whole domain is waiting for it. */
static double shared_limit(const struct budget *b)
{
	double limit = at_most(b->limit, GATE_PAGES_MAX);

	if (b->wb_dirty * b->thresh >
		b->wb_thresh * limit) /* of the limit, also while it lags */
		limit -= at_least(limit - b->setpoint, 0) / 4;
	return at_least(limit, 1);
}

/* While others wait: half of the room for all of them. */
static double slice(struct budget *b, const struct throttle_domain *dom,
	const struct throttle_device *dev, const struct throttle_sample *s, double room,
	unsigned nr_writers)
{
	const struct law *law = throttle_law(b->law);
	double pages = at_most(floor(room / (2 * at_least(nr_writers, 1))), SLICE_PAGES);
	struct budget own;

	if (law->slice && pages > 1) {
		throttle_budget_position(b);
		if (throttle_budget_cap(&own, dom, dev, s)) {
			throttle_budget_position(&own);
			if (own.pos_ratio < b->pos_ratio)
				b = &own;
		}
		pages = at_most(pages, floor(law->slice(b, dev)));
	}
	return at_least(pages, 1);
}

double throttle_admissible(const struct throttle_domain *dom, const struct throttle_device *dev,
	const struct throttle_sample *s, double want, double reserved, unsigned nr_writers,
	bool queued)
{
	double pages = floor(at_least(want, 0));
	struct budget b;
	double wb_taken, room;

	throttle_budget_domain(&b, dom, dev, s);
	reserved = at_least(reserved, 0);
	wb_taken = b.wb_dirty + reserved;
	room = shared_limit(&b) - (b.dirty + reserved);
	room = at_most(room, throttle_hard_cap(dev, s) - wb_taken);
	if (s->strict_limit) /* at least a page: nothing dirty must admit something */
		room = at_most(room, at_least(b.wb_thresh, 1) - wb_taken);
	room = floor(room);
	if (room < 1 || pages < 1)
		return 0;
	if (queued)
		pages = at_most(pages, slice(&b, dom, dev, s, room, nr_writers));
	return at_most(pages, room);
}
