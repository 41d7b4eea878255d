// The program `vernier`.
#include <vernier/abi.h>

#include <iostream>

int main() {
  std::cout << "vernier, " << VERNIER_BUILD << '\n';
  return 0;
}
