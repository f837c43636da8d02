#include <iostream>
#include <Eigen/Core>
#include "kvevict/policies/snapkv.hpp"
#include "kvevict/kernels/kernels.hpp"
