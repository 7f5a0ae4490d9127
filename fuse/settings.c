#include "fuse/settings.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "util/parse.h"

enum {
	CENTISECS_LEAST = 10,	 /* below a tenth of a second no device streams */
	CENTISECS_MOST = 360000, /* an hour: as good as never */
	LIMIT_CENTISECS = 200,
	LIMIT_LEAST = 65536,	 /* smaller than 16 pages nothing streams */
	BACKGROUND_LEAST = 4096, /* one page */
};

enum kind { KIND_BYTES, KIND_CENTISECS, KIND_PERCENT, KIND_SWITCH, KIND_LAW };

struct knob {
	const char *name;
	size_t offset; /* in struct settings */
	uint64_t least;
	uint64_t most;
	enum kind kind;
	bool zero; /* 0 is allowed too, below least */
	bool per_device;
	bool background; /* of the domain: choosing it ends following the limit */
	size_t other;	 /* offset of the other half of a bytes/ratio pair, or 0 */
};

#define DEVICE(field) offsetof(struct settings, device.field)
#define DOMAIN(field) offsetof(struct settings, domain.field)
#define DEVICE_KNOB(field, ...)                                                                \
	{                                                                                      \
		.name = #field, .offset = DEVICE(field), .per_device = true, __VA_ARGS__       \
	}
#define DOMAIN_KNOB(field, ...)                                                                \
	{                                                                                      \
		.name = #field, .offset = DOMAIN(field), __VA_ARGS__                           \
	}
#define RANGE(a, b) .least = (a), .most = (b)

static const struct knob knobs[] = {
	DEVICE_KNOB(dirty_background_centisecs, .kind = KIND_CENTISECS, .zero = true,
		RANGE(CENTISECS_LEAST, CENTISECS_MOST)),
	DEVICE_KNOB(dirty_centisecs, .kind = KIND_CENTISECS, .zero = true,
		RANGE(CENTISECS_LEAST, CENTISECS_MOST)),
	DEVICE_KNOB(max_bytes, .kind = KIND_BYTES, .zero = true, RANGE(LIMIT_LEAST, INT64_MAX)),
	DEVICE_KNOB(min_ratio, .kind = KIND_PERCENT, RANGE(0, 100)),
	DEVICE_KNOB(max_ratio, .kind = KIND_PERCENT, RANGE(1, 100)),
	DEVICE_KNOB(strict_limit, .kind = KIND_SWITCH, RANGE(0, 1)),
	DOMAIN_KNOB(dirty_bytes, .kind = KIND_BYTES, .other = DOMAIN(dirty_ratio),
		RANGE(LIMIT_LEAST, INT64_MAX)),
	DOMAIN_KNOB(
		dirty_ratio, .kind = KIND_PERCENT, .other = DOMAIN(dirty_bytes), RANGE(1, 100)),
	DOMAIN_KNOB(dirty_background_bytes, .kind = KIND_BYTES, .background = true,
		.other = DOMAIN(dirty_background_ratio), RANGE(BACKGROUND_LEAST, INT64_MAX)),
	DOMAIN_KNOB(dirty_background_ratio, .kind = KIND_PERCENT, .background = true,
		.other = DOMAIN(dirty_background_bytes), RANGE(1, 100)),
	DOMAIN_KNOB(dirty_expire_centisecs, .kind = KIND_CENTISECS, RANGE(1, CENTISECS_MOST)),
	DOMAIN_KNOB(dirty_writeback_centisecs, .kind = KIND_CENTISECS, .zero = true,
		RANGE(1, CENTISECS_MOST)),
	DOMAIN_KNOB(law, .kind = KIND_LAW),
};

enum { NR_KNOBS = sizeof(knobs) / sizeof(knobs[0]) };

static void init_device(struct device_settings *d)
{
	/* The 2012 proposal's useful value: the disk starts within a second, and a small
	 * file is on it a second after it was written. */
	d->dirty_background_centisecs = 100;
	/* "Copied" means at most two seconds away from written, and so umount, sync and
	 * fsync take a second or two. */
	d->dirty_centisecs = LIMIT_CENTISECS;
	/* A backlog of two seconds becomes twenty when flash slows ten-fold: a cap in
	 * bytes keeps that bounded, whatever speed was measured before. */
	d->max_bytes = 64ull << 20;
	/* Nobody is promised a part of the budget, anybody may have all of it: as the
	 * kernel's bdi. */
	d->min_ratio = 0;
	d->max_ratio = 100;
	/* One device under a budget of its own needs no stricter guard. */
	d->strict_limit = false;
}

static void init_domain(struct domain_settings *d)
{
	/* Ratios by default, so that they scale with the cache. Half of it may be dirty:
	 * the rest stays for reading back and for copies on write. */
	d->dirty_bytes = 0;
	d->dirty_ratio = 50;
	/* Half of the limit: freerun ends in the middle between the two, where the
	 * kernel's law expects it. */
	d->dirty_background_bytes = 0;
	d->dirty_background_ratio = 25;
	/* The kernel's values; the background time is what makes data leave early. */
	d->dirty_expire_centisecs = 3000;
	d->dirty_writeback_centisecs = 500;
	/* As fast as the other, and with shorter waits, equal parts, and limits that are kept
	 * where the kernel's has long oscillations; README has the table. */
	d->law = THROTTLE_PACE;
}

void settings_init(struct settings *s)
{
	memset(s, 0, sizeof(*s));
	init_device(&s->device);
	init_domain(&s->domain);
}

static const struct knob *find_knob(const char *name)
{
	for (size_t i = 0; i < NR_KNOBS; i++)
		if (strcmp(knobs[i].name, name) == 0)
			return &knobs[i];
	return NULL;
}

static uint64_t *number_at(struct settings *s, size_t offset)
{
	return (uint64_t *)(void *)((char *)s + offset);
}

static uint64_t number_of(const struct settings *s, const struct knob *k)
{
	const void *at = (const char *)s + k->offset;

	if (k->kind == KIND_SWITCH)
		return *(const bool *)at;
	return *(const uint64_t *)at;
}

static const char *unit_of(const struct knob *k)
{
	switch (k->kind) {
	case KIND_BYTES:
		return " bytes (64K, 16M, 1G work too)";
	case KIND_CENTISECS:
		return " centiseconds";
	case KIND_PERCENT:
		return " percent";
	default:
		return "";
	}
}

/* "0 or 10..360000 centiseconds" */
static void describe_range(const struct knob *k, char *text, size_t size)
{
	const char *zero = k->zero ? "0 or " : "";

	if (k->kind == KIND_SWITCH)
		snprintf(text, size, "0 or 1");
	else if (k->most == INT64_MAX)
		snprintf(text, size, "%sat least %" PRIu64 "%s", zero, k->least, unit_of(k));
	else
		snprintf(text, size, "%s%" PRIu64 "..%" PRIu64 "%s", zero, k->least, k->most,
			unit_of(k));
}

static int assign_law(struct settings *s, const char *value, char *message, size_t size)
{
	if (throttle_law_by_name(value, &s->domain.law))
		return 0;
	size_t at = (size_t)snprintf(message, size, "law=%.40s rejected: need", value);
	for (unsigned law = 0; law < THROTTLE_NR_LAWS && at < size; law++)
		at += (size_t)snprintf(message + at, size - at, "%s %s", law ? " or" : "",
			throttle_law_name((enum throttle_law)law));
	return -EINVAL;
}

static int parse_number(const struct knob *k, const char *value, uint64_t *ret_number)
{
	uint64_t number;
	int r = k->kind == KIND_BYTES ? parse_size(value, &number) : parse_uint(value, &number);

	if (r < 0)
		return r;
	if (!(number == 0 && k->zero) && (number < k->least || number > k->most))
		return -EINVAL;
	*ret_number = number;
	return 0;
}

static uint64_t following_ratio(const struct domain_settings *d)
{
	return d->dirty_ratio > 1 ? d->dirty_ratio / 2 : d->dirty_ratio;
}

/* A background nobody chose stays at half of the limit, so that lowering the limit alone
 * works. */
static void follow_limit(struct domain_settings *d)
{
	if (d->background_chosen)
		return;
	d->dirty_background_bytes = d->dirty_bytes / 2;
	d->dirty_background_ratio = following_ratio(d);
}

/* A limit in time nobody chose leaves room above the background that somebody did: twice of
 * it, so that setting dirty_background_centisecs alone works. */
static uint64_t following_centisecs(const struct device_settings *d)
{
	uint64_t twice = 2 * d->dirty_background_centisecs;

	if (twice < LIMIT_CENTISECS)
		return LIMIT_CENTISECS;
	return twice > CENTISECS_MOST ? 0 : twice; /* 0: as good as none */
}

static void follow_background(struct device_settings *d)
{
	if (!d->limit_chosen)
		d->dirty_centisecs = following_centisecs(d);
}

void settings_infer_chosen(struct settings *s)
{
	const struct domain_settings *d = &s->domain;

	s->device.limit_chosen = s->device.dirty_centisecs != following_centisecs(&s->device);
	s->domain.background_chosen = d->dirty_background_bytes != d->dirty_bytes / 2 ||
		d->dirty_background_ratio != following_ratio(d);
}

int settings_assign(struct settings *s, const char *name, const char *value, char *message,
	size_t message_size)
{
	const struct knob *k = find_knob(name);
	char range[96];
	uint64_t number;

	if (!k) {
		snprintf(message, message_size, "no setting is named %.60s", name);
		return -ENODATA;
	}
	if (k->kind == KIND_LAW)
		return assign_law(s, value, message, message_size);
	if (parse_number(k, value, &number) < 0) {
		describe_range(k, range, sizeof(range));
		snprintf(message, message_size, "%s=%.40s rejected: need %s", name, value,
			range);
		return -EINVAL;
	}
	if (k->kind == KIND_SWITCH) {
		s->device.strict_limit = number;
		return 0;
	}
	*number_at(s, k->offset) = number;
	if (k->other)
		*number_at(s, k->other) = 0;
	if (k->background)
		s->domain.background_chosen = true;
	if (k->offset == DEVICE(dirty_centisecs))
		s->device.limit_chosen = true;
	follow_limit(&s->domain);
	follow_background(&s->device);
	return 0;
}

static int check_device(const struct device_settings *d, char *message, size_t size)
{
	if (d->dirty_centisecs && d->dirty_background_centisecs >= d->dirty_centisecs) {
		snprintf(message, size,
			"dirty_background_centisecs=%" PRIu64 " with dirty_centisecs=%" PRIu64
			" rejected: need the background below the limit (set that "
			"first), "
			"in centiseconds",
			d->dirty_background_centisecs, d->dirty_centisecs);
		return -EINVAL;
	}
	if (d->min_ratio > d->max_ratio) {
		snprintf(message, size,
			"min_ratio=%" PRIu64 " with max_ratio=%" PRIu64
			" rejected: need min_ratio not above max_ratio, in percent",
			d->min_ratio, d->max_ratio);
		return -EINVAL;
	}
	return 0;
}

/* Is the background at or above the limit? Bytes and percent compare only by a known
 * cache. */
static bool background_too_high(const struct domain_settings *d, uint64_t cache_bytes)
{
	if (d->dirty_ratio && d->dirty_background_ratio)
		return d->dirty_background_ratio >= d->dirty_ratio;
	if (d->dirty_bytes && d->dirty_background_bytes)
		return d->dirty_background_bytes >= d->dirty_bytes;
	if (cache_bytes == 0)
		return false;
	double percent = (double)cache_bytes / 100;
	double limit =
		d->dirty_bytes ? (double)d->dirty_bytes : (double)d->dirty_ratio * percent;
	double background = d->dirty_background_bytes
		? (double)d->dirty_background_bytes
		: (double)d->dirty_background_ratio * percent;
	return background >= limit;
}

/* Only a background that somebody chose can be wrong: a followed one of 1 % under a limit
 * of 1 % is halved by the law. */
static int check_domain(
	const struct domain_settings *d, uint64_t cache_bytes, char *message, size_t size)
{
	if (!d->background_chosen || !background_too_high(d, cache_bytes))
		return 0;
	const char *bg_kind = d->dirty_background_bytes ? "bytes" : "ratio";
	const char *kind = d->dirty_bytes ? "bytes" : "ratio";
	snprintf(message, size,
		"dirty_background_%s=%" PRIu64 " with dirty_%s=%" PRIu64
		" rejected: need the background below the limit (set that first; cache: "
		"%" PRIu64 " bytes)",
		bg_kind, d->dirty_background_bytes + d->dirty_background_ratio, kind,
		d->dirty_bytes + d->dirty_ratio, cache_bytes);
	return -EINVAL;
}

int settings_check(
	const struct settings *s, uint64_t cache_bytes, char *message, size_t message_size)
{
	int r = check_device(&s->device, message, message_size);

	return r < 0 ? r : check_domain(&s->domain, cache_bytes, message, message_size);
}

int settings_set(struct settings *s, const char *name, const char *value, uint64_t cache_bytes,
	char *message, size_t message_size)
{
	struct settings next = *s;
	int r = settings_assign(&next, name, value, message, message_size);

	if (r == 0)
		r = settings_check(&next, cache_bytes, message, message_size);
	if (r == 0)
		*s = next;
	return r;
}

int settings_get(const struct settings *s, const char *name, char *text, size_t text_size)
{
	const struct knob *k = find_knob(name);

	if (!k)
		return -ENODATA;
	if (k->kind == KIND_LAW)
		return snprintf(text, text_size, "%s", throttle_law_name(s->domain.law));
	return snprintf(text, text_size, "%" PRIu64, number_of(s, k));
}

const char *const *settings_names(void)
{
	static const char *const names[NR_KNOBS + 1] = {"dirty_background_centisecs",
		"dirty_centisecs", "max_bytes", "min_ratio", "max_ratio", "strict_limit",
		"dirty_bytes", "dirty_ratio", "dirty_background_bytes",
		"dirty_background_ratio", "dirty_expire_centisecs", "dirty_writeback_centisecs",
		"law"};

	return names;
}

bool settings_is_per_device(const char *name)
{
	const struct knob *k = find_knob(name);

	return k && k->per_device;
}
