#include "tests/sim/sim.h"

int sim_swarm(double seconds, uint64_t seed)
{
	return 0;
}
void sim_config_help(FILE *out)
{
}
