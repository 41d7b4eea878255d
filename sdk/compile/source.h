// The source of a program: the operators of forward and backward, as loops over fixed shapes.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "tape.h"

namespace vernier::compile {

extern const char* const prelude;

using Calls = std::vector<Tape::Call>;

// The memory of the operators. What they make and nobody else holds lies in one block, the arena, in which memory is
// used again when its last reader is done; everything else keeps its address, from a table.
class Memory {
 public:
  // Forward comes first in calls. results: tensors that are read after the program.
  Memory(const Calls& calls, const std::vector<at::Tensor>& results);
  Memory(const Memory&) = delete;
  // Moves the tensors of the tapes into the arena.
  void take() const;

  std::string address(const at::Tensor& tensor) const;  // a pointer to its first element, in C++
  // Returns true if a later call uses the tensor's memory, or if somebody else holds it.
  bool is_read_after(std::size_t call, const at::Tensor& tensor) const;
  const std::vector<void*>& outside() const { return outside_; }
  char* arena() const { return static_cast<char*>(arena_.data_ptr()); }

 private:
  struct Block {
    c10::Storage storage;
    std::size_t number = 0;           // in the order of appearance
    std::size_t first = 0, last = 0;  // calls
    std::size_t users = 0;            // tensors of the tapes
    bool is_made = false;             // by an operator
    std::int64_t place = -1;          // in the arena, or, if is_outside, in the table
    bool is_outside = false;
  };
  void look(const Calls& calls);
  void place();

  std::map<const void*, Block> blocks_;
  at::Tensor arena_;
  std::vector<void*> outside_;
};

// The element type in C++; "" if programs have none for it.
std::string type_of(at::ScalarType dtype);
// True for operators that compute nothing: views, and memory that is not filled.
bool is_only_memory(const Tape::Call& call);
// Returns the statements of an operator, or "" if there is no rule for it. number: the operator's, which the program
// asks the tape to call if a class or a row does not exist.
std::string statements_of(const Tape::Call& call, std::size_t number, const Memory& memory);

// The text of a program, which has two functions: forward and backward. They call operators without a rule through the
// tape.
struct Source {
  std::string text;
  std::set<std::string> called;  // the names of operators without a rule
  std::size_t written = 0;       // operators with one
};
Source source_of(const Calls& calls, std::size_t forward, const Memory& memory);

}  // namespace vernier::compile
