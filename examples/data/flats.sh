#!/bin/sh
# flats.sh [ROWS [SEED]]: prints a CSV file of made-up flats and their rents: numbers, a category, some noise. It is the
# same everywhere: awk computes all of it from ROWS and SEED. configs/tabular.toml and
# docs/start/train-your-own.md use it.
awk -v rows="${1:-3000}" -v seed="${2:-1}" '
  # Park and Miller (1988): exact in double precision.
  function uniform() { state = (state * 16807) % 2147483647; return state / 2147483647 }
  BEGIN {
    state = 12345 + 1000003 * seed
    count = split("harbour centre north garden mill", names, " ")
    split("6 9 -2 3 0", extra, " ")
    print "district,area,rooms,floor,year,rent"
    for (i = 0; i < rows; ++i) {
      district = 1 + int(count * uniform())
      area = 20 + 120 * uniform() ^ 2
      rooms = 1 + int(area / 32 + uniform())
      floor = int(8 * uniform())
      year = 1900 + int(125 * uniform())
      age = (2025 - year) / 125
      rent = area * (9 + extra[district] / 2 - 3 * age + 4 * age * age) + 40 * rooms - (floor > 4 ? 12 * floor : 0)
      rent += 60 * (uniform() + uniform() + uniform() - 1.5)
      printf "%s,%.1f,%d,%d,%d,%.0f\n", names[district], area, rooms, floor, year, rent
    }
  }'
