#!/bin/sh
# corpus.sh texts|questions [NUMBER [SEED]]: prints sentences about made-up animals, or questions about them with answers
# as JSON Lines. They are the same everywhere: awk computes them from NUMBER and SEED.
awk -v kind="${1:-texts}" -v number="${2:-4000}" -v seed="${3:-1}" '
  # Park and Miller (1988): exact in double precision.
  function uniform() { state = (state * 16807) % 2147483647; return state / 2147483647 }
  function pick(count) { return 1 + int(count * uniform()) }
  BEGIN {
    state = 12345 + 1000003 * seed
    count = split("fox owl hare crane otter mole toad lynx wren boar", animals, " ")
    split("red grey brown white black blue green golden spotted striped", colours, " ")
    split("mice moths clover frogs trout worms flies rabbits seeds acorns", foods, " ")
    split("wood barn meadow marsh river garden pond hills hedge valley", places, " ")
    times = split("In the morning|At noon|In the evening|In winter|In summer", when, "|")
    for (i = 0; i < number; ++i) {
      a = pick(count)
      kind_of = pick(3)
      if (kind == "questions") {
        if (kind_of == 1) { question = "What does the " animals[a] " eat?"; answer = "The " animals[a] " eats " foods[a] "." }
        if (kind_of == 2) { question = "Where does the " animals[a] " live?"; answer = "It lives in the " places[a] "." }
        if (kind_of == 3) { question = "What colour is the " animals[a] "?"; answer = "It is " colours[a] "." }
        printf "{\"prompt\": \"Question: %s\\nAnswer:\", \"completion\": \" %s\"}\n", question, answer
      } else {
        if (kind_of == 1) print when[pick(times)] " the " colours[a] " " animals[a] " eats " foods[a] " in the " places[a] "."
        if (kind_of == 2) print "The " animals[a] " is " colours[a] ", and it lives in the " places[a] "."
        if (kind_of == 3) print "A " animals[a] " looks for " foods[a] ". It comes from the " places[a] "."
      }
    }
  }'
