#include "tests/sim/model.h"

#include <math.h>

/* splitmix64 (Steele, Lea, Flood 2014): a counter and a finaliser; any state is a good one. */
uint64_t sim_random_next(struct sim_random *r)
{
	uint64_t z = r->state += 0x9e3779b97f4a7c15ull;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

struct sim_random sim_random_make(uint64_t seed, uint64_t stream)
{
	struct sim_random r = {.state = seed};
	struct sim_random s = {.state = sim_random_next(&r) ^ stream * 0xd1342543de82ef95ull};

	sim_random_next(&s);
	return s;
}

double sim_random_uniform(struct sim_random *r)
{
	return (double)(sim_random_next(r) >> 11) * 0x1p-53;
}

double sim_random_normal(struct sim_random *r)
{
	double u = 1 - sim_random_uniform(r); /* never 0 */

	return sqrt(-2 * log(u)) * cos(2 * M_PI * sim_random_uniform(r));
}
