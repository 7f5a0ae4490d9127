/* fuzz.h - what the fuzz targets share: bytes become numbers, and a check that ends the run. */
#ifndef PACEFS_TESTS_FUZZ_FUZZ_H
#define PACEFS_TESTS_FUZZ_FUZZ_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* What the fuzzer calls. 0. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Stays in with any options, and leaves the input behind as libFuzzer does for a crash. */
#define CHECK(condition, ...)                                                                  \
	do {                                                                                   \
		if (!(condition)) {                                                            \
			fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #condition);        \
			fprintf(stderr, __VA_ARGS__);                                          \
			fputc('\n', stderr);                                                   \
			abort();                                                               \
		}                                                                              \
	} while (0)

/* The rest of an input. All of it used up: zeroes. */
struct input {
	const uint8_t *at, *end;
};

static inline uint8_t input_byte(struct input *in)
{
	return in->at < in->end ? *in->at++ : 0;
}

static inline uint64_t input_bytes(struct input *in, unsigned n)
{
	uint64_t x = 0;

	while (n-- != 0)
		x = x << 8 | input_byte(in);
	return x;
}

/* 0..n-1 */
static inline unsigned input_below(struct input *in, unsigned n)
{
	return input_byte(in) % n;
}

/* Of all magnitudes up to 2^63, small ones more often. */
static inline uint64_t input_integer(struct input *in)
{
	unsigned bits = input_below(in, 64);

	return input_bytes(in, (bits + 7) / 8) & (((uint64_t)1 << bits) - 1);
}

#endif
