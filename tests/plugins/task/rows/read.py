"""Prints how an exported model reads each row of a CSV file: [numbers, codes], or null where it refuses the row.

python3 read.py FOLDER_OF_MODEL FILE SEPARATOR
"""
import csv
import json
import sys
import warnings

sys.path.insert(0, sys.argv[1])
import model

warnings.simplefilter("ignore")
with open(sys.argv[2], encoding="utf-8", newline="") as file:
    rows = list(csv.DictReader(file, delimiter=sys.argv[3]))
reader, read = model.Rows(None), []
for row in rows:
    try:
        numbers, codes = reader.read([row])
        read.append([numbers[0], codes[0]])
    except ValueError:
        read.append(None)
print(json.dumps(read))
