// other.cpp with every policy that has a name.
#define KVEVICT_TEST_ALL_POLICIES
#include "other.cpp"
