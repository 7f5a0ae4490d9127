/* admission.c - the gate: how many pages may become dirty now.
 *
 * Differs from Linux: there a writer dirties first and is held afterwards, so that N
 * writers can pass the limit by N requests. Requests here are whole and up to 1 MiB; the
 * gate is exact.
 */
#include "throttle/formulas.h"

#include <math.h>

/* A device above its share leaves the last part of the scope to the others. A dead device
 * would otherwise take the room that a good one frees, page by page and for ever, until
 * the whole domain is waiting for it. */
static double shared_limit(const struct throttle_domain *dom, const struct throttle_device *dev,
	const struct throttle_sample *s)
{
	double limit = throttle_gate(throttle_hard_limit(dom, s), s->thresh);
	struct budget b;

	throttle_budget_domain(&b, dom, dev, s);
	if (b.wb_dirty * b.thresh > b.wb_thresh * limit) /* of the limit, also while it lags */
		limit -= fmax(limit - b.setpoint, 0) / 4;
	return fmax(limit, 1);
}

double throttle_admissible(const struct throttle_domain *dom, const struct throttle_device *dev,
	const struct throttle_sample *s, double want, double reserved, unsigned nr_writers,
	bool queued)
{
	double taken = fmax(fmax(s->dirty, s->wb_dirty), 0) + fmax(reserved, 0);
	double wb_taken = fmax(s->wb_dirty, 0) + fmax(reserved, 0);
	double room = shared_limit(dom, dev, s) - taken;
	double slice = floor(fmax(want, 0));

	room = fmin(room, throttle_gate(throttle_hard_cap(dev, s), s->cap_thresh) - wb_taken);
	if (s->strict_limit) /* at least a page: nothing dirty must admit something */
		room = fmin(room,
			fmax(throttle_device_thresholds(dom, dev, s).thresh, 1) - wb_taken);
	room = floor(room);
	if (room < 1 || slice < 1)
		return 0;
	if (queued) {
		double part = floor(room / (2 * fmax(nr_writers, 1)));

		slice = fmin(slice, clamp(part, 1, SLICE_PAGES));
	}
	return fmin(slice, room);
}
