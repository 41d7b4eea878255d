"""Writes made-up texts for configs/text.toml: advertisements to check, and search snippets with their clicks.

    python3 examples/data/texts.py data/texts

adverts.csv      text, label: a promise is fine for a trip or a shop, and misleading for money or health
snippets.jsonl   query, title, snippet, clicks: of 1000 times that the snippet was shown. People click on a title that
                 answers their query; a number in it helps, a shouting one does not
results.jsonl    search, query, title, snippet, clicks: the same, eight for each search, to be ranked

The files are the same on every machine. Needs Python 3 alone.
"""

import csv
import json
import pathlib
import random
import sys

ADVERTS, SNIPPETS, SEARCHES, RESULTS = 2000, 2000, 300, 8

PROMISES = ["guaranteed", "without any risk", "in one day", "100% sure", "the secret that works"]
CALLS = ["Order now", "Call today", "See our offers", "Only this week", "Ask our team", "Read more"]
GOODS = {
    "trip": ["seats to Rome", "a room by the sea", "a weekend in Lisbon", "train tickets", "a tour of the fjords"],
    "shop": ["delivery of your shoes", "a bicycle", "coffee beans", "garden chairs", "a warm coat"],
    "money": ["a return of 12 percent", "a loan", "profit from shares", "credit", "your pension doubled"],
    "health": ["10 kilos less", "relief from pain", "better sleep", "hair that grows back", "a cure for colds"],
}
QUERIES = {
    "bread": ["how to bake bread", "sourdough recipe", "bread without yeast"],
    "bicycle": ["repair a bicycle chain", "best city bike", "bicycle tyre pressure"],
    "garden": ["when to plant tomatoes", "roses pruning", "garden in shade"],
    "tax": ["tax return deadline", "deduct home office", "tax for students"],
    "python": ["python read csv", "python list sort", "install python"],
    "travel": ["cheap flights rome", "train to lisbon", "packing list"],
}
TITLES = {
    "bread": ["Baking bread at home", "Sourdough for beginners", "Loaves that always rise"],
    "bicycle": ["Bicycle chains, cleaned and repaired", "City bikes compared", "Tyres and their pressure"],
    "garden": ["Tomatoes from seed to fruit", "Pruning roses", "Plants for shady places"],
    "tax": ["Your tax return, step by step", "What a home office saves", "Taxes while you study"],
    "python": ["Tables and files in Python", "Sorting lists", "Python on your computer"],
    "travel": ["Flights to Italy", "Lisbon by train", "What to pack"],
}


def advert(draw):
    kind = draw.choice(list(GOODS))
    promises = draw.random() < 0.5
    words = [draw.choice(GOODS[kind])] + ([draw.choice(PROMISES)] if promises else ["from our house"])
    draw.shuffle(words)
    parts = [" ".join(words).capitalize() + ".", draw.choice(CALLS) + "!"]
    draw.shuffle(parts)
    return " ".join(parts), "misleading" if promises and kind in ("money", "health") else "fine"


def asked(draw):
    topic = draw.choice(list(QUERIES))
    return topic, draw.choice(QUERIES[topic])


def snippet(draw, topic, query):
    other = draw.choice([each for each in QUERIES if each != topic])
    fits = draw.random() < 0.6
    title = draw.choice(TITLES[topic if fits else other])
    clicks = 160 if fits else 60
    if draw.random() < 0.3:
        title, clicks = f"{draw.randint(3, 12)} tips: {title}", clicks + 80
    if draw.random() < 0.2:
        title, clicks = title.upper() + "!!!", clicks - 50
    text = draw.choice(["Updated this week.", "By people who do it daily.", "With pictures.", "A short answer."])
    return {
        "query": query,
        "title": title,
        "snippet": text,
        "clicks": max(0, round(clicks + draw.uniform(-15, 15))),
    }


def main(folder):
    folder.mkdir(parents=True, exist_ok=True)
    draw = random.Random(1)
    with open(folder / "adverts.csv", "w", encoding="ascii", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["text", "label"])
        rows.writerows(advert(draw) for _ in range(ADVERTS))
    with open(folder / "snippets.jsonl", "w", encoding="ascii", newline="\n") as file:
        for _ in range(SNIPPETS):
            file.write(json.dumps(snippet(draw, *asked(draw))) + "\n")
    with open(folder / "results.jsonl", "w", encoding="ascii", newline="\n") as file:
        for search in range(SEARCHES):
            topic, query = asked(draw)
            for _ in range(RESULTS):
                file.write(json.dumps({"search": search} | snippet(draw, topic, query)) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: texts.py FOLDER")
    main(pathlib.Path(sys.argv[1]))
