// other.cpp with every policy that has a name.
#define KVEVICT_TEST_ALL_POLICIES
// NOLINTNEXTLINE(bugprone-suspicious-include): the same program with more in it
#include "other.cpp"
