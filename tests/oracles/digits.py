"""Records digits.json: 50 expressions, their exact values, and how far rounding at random spreads their float32 results.

    python3 tests/oracles/digits.py [--compare]

Needs mpmath 1.3.0, and no torch. An expression is a list of operators on vectors of float32. Each operator is computed
with 60 digits. A linear form carries the first-order effect of every rounding to the result: rounding at random of a
number that lies the fraction f of a step above a float32 has the variance f (1 - f) steps squared, and 1/6 on average,
which is taken where the operands are rounded themselves.
"""

import argparse
import json
import os
import struct

from mpmath import mp, mpf

mp.dps = 60
PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "digits.json")


def single(x):
    return struct.unpack("f", struct.pack("f", float(x)))[0]


def step_of(x):
    """The distance of float32 numbers at x."""
    return mpf(2) ** (int(mp.floor(mp.log(abs(x), 2))) - 23)


class Number:
    """An exact value, and its first-order error as coefficients of independent roundings."""

    def __init__(self, value, form=None):
        self.value, self.form = mpf(value), form or {}

    def deviation(self):
        return mp.sqrt(sum(each**2 for each in self.form.values()))


class Expression:
    def __init__(self, name):
        self.name, self.inputs, self.steps, self.values, self.sources = name, [], [], [], 0

    def input(self, *numbers):
        numbers = [single(x) for x in numbers]
        assert not self.steps, "inputs come first"
        self.inputs.append(numbers)
        self.values.append([Number(x) for x in numbers])
        return len(self.values) - 1

    def rounded(self, value, operands, slopes, exact=False):
        """The result of an operator: first-order errors of its operands, and one of its own."""
        form = {}
        for operand, slope in zip(operands, slopes):
            for source, coefficient in operand.form.items():
                form[source] = form.get(source, 0) + slope * coefficient
        if value != 0 and not exact:
            step, variance = step_of(value), mpf(1) / 6
            if not any(operand.form for operand in operands):
                fraction = value / step - mp.floor(value / step)
                variance = fraction * (1 - fraction)
            if variance > 0:
                form[self.sources] = step * mp.sqrt(variance)
                self.sources += 1
        return Number(value, form)

    def op(self, name, *arguments):
        self.steps.append([name, *arguments])
        self.values.append(getattr(self, "do_" + name)(*[self.values[i] for i in arguments]))
        return len(self.values) - 1

    def select(self, vector, index):
        self.steps.append(["select", vector, index])
        self.values.append([self.values[vector][index]])
        return len(self.values) - 1

    def pairs(self, a, b, function):
        size = max(len(a), len(b))
        return [function(a[i % len(a)], b[i % len(b)]) for i in range(size)]

    def each(self, a, value, slope):
        return [self.rounded(value(x.value), [x], [slope(x.value)]) for x in a]

    def add_one(self, x, y, sign):
        total = x.value + sign * y.value
        a, b = abs(x.value), abs(y.value)
        near = (x.value > 0) == (sign * y.value < 0) and b <= 2 * a and a <= 2 * b  # Sterbenz: no rounding
        return self.rounded(total, [x, y], [1, sign], exact=near)

    def do_add(self, a, b):
        return self.pairs(a, b, lambda x, y: self.add_one(x, y, 1))

    def do_sub(self, a, b):
        return self.pairs(a, b, lambda x, y: self.add_one(x, y, -1))

    def do_mul(self, a, b):
        def multiply(x, y):
            exact = any(mp.frexp(abs(each.value))[0] == mpf(1) / 2 and not each.form for each in (x, y))
            return self.rounded(x.value * y.value, [x, y], [y.value, x.value], exact)

        return self.pairs(a, b, multiply)

    def do_div(self, a, b):
        def divide(x, y):
            exact = mp.frexp(abs(y.value))[0] == mpf(1) / 2 and not y.form
            return self.rounded(x.value / y.value, [x, y], [1 / y.value, -x.value / y.value**2], exact)

        return self.pairs(a, b, divide)

    def do_sum(self, a):
        return [self.rounded(sum(x.value for x in a), a, [1] * len(a))]

    def do_mean(self, a):
        return [self.rounded(sum(x.value for x in a) / len(a), a, [mpf(1) / len(a)] * len(a))]

    def do_dot(self, a, b):
        total = sum(x.value * y.value for x, y in zip(a, b))
        return [self.rounded(total, a + b, [y.value for y in b] + [x.value for x in a])]

    def do_norm(self, a):
        norm = mp.sqrt(sum(x.value**2 for x in a))
        return [self.rounded(norm, a, [x.value / norm for x in a])]

    def do_max(self, a):
        return [max(a, key=lambda x: x.value)]

    def do_neg(self, a):
        return [Number(-x.value, {source: -each for source, each in x.form.items()}) for x in a]

    def do_softmax(self, a):
        parts = [mp.exp(x.value) for x in a]
        shares = [part / sum(parts) for part in parts]
        return [
            self.rounded(p, a, [p * ((1 if i == j else 0) - q) for j, q in enumerate(shares)])
            for i, p in enumerate(shares)
        ]

    def do_logsumexp(self, a):
        parts = [mp.exp(x.value) for x in a]
        return [self.rounded(mp.log(sum(parts)), a, [part / sum(parts) for part in parts])]

    def do_sqrt(self, a):
        return self.each(a, mp.sqrt, lambda x: 1 / (2 * mp.sqrt(x)))

    def do_exp(self, a):
        return self.each(a, mp.exp, mp.exp)

    def do_log(self, a):
        return self.each(a, mp.log, lambda x: 1 / x)

    def do_sin(self, a):
        return self.each(a, mp.sin, mp.cos)

    def do_cos(self, a):
        return self.each(a, mp.cos, lambda x: -mp.sin(x))

    def do_tanh(self, a):
        return self.each(a, mp.tanh, lambda x: 1 - mp.tanh(x) ** 2)


class Numbers:
    """Numbers that are the same everywhere: a generator of Lehmer, MINSTD."""

    def __init__(self, seed):
        self.state = seed

    def __call__(self, low, high, count):
        numbers = []
        for _ in range(count):
            self.state = self.state * 48271 % 2147483647
            numbers.append(low + (high - low) * self.state / 2147483647)
        return numbers


def shift(name, x, big):
    e = Expression(name)
    a, b = e.input(x), e.input(big)
    e.op("sub", e.op("add", a, b), b)
    return e


def running_sum(name, numbers):
    e = Expression(name)
    x = e.input(*numbers)
    total = e.select(x, 0)
    for i in range(1, len(numbers)):
        total = e.op("add", total, e.select(x, i))
    return e


def horner(name, coefficients, x):
    e = Expression(name)
    x, c = e.input(x), [e.input(each) for each in coefficients]
    total = c[0]
    for each in c[1:]:
        total = e.op("add", e.op("mul", total, x), each)
    return e


def dots(name, a, b, way):
    e = Expression(name)
    x, y = e.input(*a), e.input(*b)
    if way == "dot":
        e.op("dot", x, y)
    else:
        e.op("sum", e.op("mul", x, y))
    return e


def softmax(name, numbers, way):
    e = Expression(name)
    x = e.input(*numbers)
    if way == "operator":
        e.select(e.op("softmax", x), 0)
        return e
    if way == "stable":
        x = e.op("sub", x, e.op("max", x))
    parts = e.op("exp", x)
    e.select(e.op("div", parts, e.op("sum", parts)), 0)
    return e


def log_sum_exp(name, numbers, way):
    e = Expression(name)
    x = e.input(*numbers)
    if way == "operator":
        e.op("logsumexp", x)
    elif way == "naive":
        e.op("log", e.op("sum", e.op("exp", x)))
    else:
        top = e.op("max", x)
        e.op("add", e.op("log", e.op("sum", e.op("exp", e.op("sub", x, top)))), top)
    return e


def variance(name, numbers, way):
    e = Expression(name)
    x = e.input(*numbers)
    mean = e.op("mean", x)
    if way == "moments":
        e.op("sub", e.op("mean", e.op("mul", x, x)), e.op("mul", mean, mean))
    else:
        d = e.op("sub", x, mean)
        e.op("mean", e.op("mul", d, d))
    return e


def product(name, numbers):
    e = Expression(name)
    x = e.input(*numbers)
    total = e.select(x, 0)
    for i in range(1, len(numbers)):
        total = e.op("mul", total, e.select(x, i))
    return e


def system(name, a, b, c, d, u, v):
    """The first unknown of [a b; c d] x = [u v], by Cramer's rule."""
    e = Expression(name)
    a, b, c, d, u, v = (e.input(each) for each in (a, b, c, d, u, v))
    over = e.op("sub", e.op("mul", u, d), e.op("mul", b, v))
    e.op("div", over, e.op("sub", e.op("mul", a, d), e.op("mul", b, c)))
    return e


def elimination(name, a, b, c, d, u, v):
    """The second unknown, by elimination."""
    e = Expression(name)
    a, b, c, d, u, v = (e.input(each) for each in (a, b, c, d, u, v))
    factor = e.op("div", c, a)
    e.op("div", e.op("sub", v, e.op("mul", factor, u)), e.op("sub", d, e.op("mul", factor, b)))
    return e


def root(name, b, c, way):
    """A root of x x + b x + c."""
    e = Expression(name)
    b, c, four, two = (e.input(each) for each in (b, c, 4, 2))
    d = e.op("sqrt", e.op("sub", e.op("mul", b, b), e.op("mul", four, c)))
    if way == "small":
        e.op("div", e.op("sub", d, b), two)
    else:
        e.op("div", e.op("mul", two, c), e.op("neg", e.op("add", b, d)))
    return e


def chain(name, inputs, *steps):
    """steps: (operator, operand, …), with the result of the step before as -1."""
    e = Expression(name)
    for each in inputs:
        e.input(*each)
    for operator, *operands in steps:
        e.op(operator, *[len(e.values) + i if i < 0 else i for i in operands])
    return e


def newton(name, a, start, rounds):
    e = Expression(name)
    a, x, half = e.input(a), e.input(start), e.input(0.5)
    for _ in range(rounds):
        x = e.op("mul", half, e.op("add", x, e.op("div", a, x)))
    return e


def normalised(name, numbers):
    e = Expression(name)
    x = e.input(*numbers)
    d = e.op("sub", x, e.op("mean", x))
    e.select(e.op("div", d, e.op("sqrt", e.op("mean", e.op("mul", d, d)))), 0)
    return e


def expressions():
    n = Numbers(7)
    one, far = n(0.5, 1.5, 12), n(-1, 1, 12)
    fifth = [1, -5, 10, -10, 5, -1]
    yield shift("shift by 100", 0.7123, 100)
    yield shift("shift by 10000", 0.7123, 1e4)
    yield shift("shift by 300000", 0.7123, 3e5)
    yield shift("shift by a million", 1.2345, 1e6)
    yield shift("shift by a small number", 0.7123, 0.0456789)
    yield running_sum("sum of positive numbers", one)
    yield running_sum("sum of both signs", far)
    yield running_sum("sum that cancels", [1000.3, 0.12345, -1000.2, 0.4567, 3.25, -3.2])
    yield running_sum("harmonic sum", [1 / i for i in range(1, 16)])
    yield chain("sum at once", [n(-1, 1, 50)], ("sum", 0))
    yield dots("dot", n(-1, 1, 20), n(-1, 1, 20), "dot")
    yield dots("dot of products", n(-1, 1, 20), n(-1, 1, 20), "products")
    yield dots("dot that cancels", [1000.1, 3.3, -999.7], [1.1, 2.2, 1.10747], "products")
    yield horner("(x-1)^5 at 1.3", fifth, 1.3)
    yield horner("(x-1)^5 at 1.15", fifth, 1.15)
    yield horner("(x-1)^5 at 0.8", fifth, 0.8)
    yield horner("(x-2)^3 at 2.1", [1, -6, 12, -8], 2.1)
    yield horner("(x-2)^3 at 5", [1, -6, 12, -8], 5.1)
    yield softmax("softmax, naive", n(-2, 2, 8), "naive")
    yield softmax("softmax, naive, large", n(20, 40, 8), "naive")
    yield softmax("softmax, stable", n(-20, 20, 8), "stable")
    yield softmax("softmax", n(-3, 3, 8), "operator")
    yield log_sum_exp("log-sum-exp, naive", n(-2, 2, 8), "naive")
    yield log_sum_exp("log-sum-exp, naive, far below", [-12.3, -0.00001, -14.1], "naive")
    yield log_sum_exp("log-sum-exp, stable", n(-30, 30, 8), "stable")
    yield log_sum_exp("log-sum-exp", n(-3, 3, 8), "operator")
    yield variance("variance by moments", n(0, 1, 10), "moments")
    yield variance("variance by moments, at 10", n(10, 11, 10), "moments")
    yield variance("variance by moments, at 100", n(100, 101, 10), "moments")
    yield variance("variance in two passes, at 100", n(100, 101, 10), "passes")
    yield variance("variance in two passes", n(0, 1, 10), "passes")
    yield product("product of 5", n(0.5, 2, 5))
    yield product("product of 15", n(0.5, 2, 15))
    yield chain("norm at once", [n(-1, 1, 10)], ("norm", 0))
    yield chain("norm of squares", [n(-1, 1, 10)], ("mul", 0, 0), ("sum", -1), ("sqrt", -1))
    yield system("system by Cramer", 2.1, 1.3, 0.7, 3.3, 1.7, 2.9)
    yield system("system by Cramer, ill", 1.001, 1.1, 0.9101, 1.0002, 2.3, 2.1)
    yield elimination("system by elimination", 2.1, 1.3, 0.7, 3.3, 1.7, 2.9)
    yield elimination("system by elimination, ill", 1.001, 1.1, 0.9101, 1.0002, 2.3, 2.1)
    yield root("root, small", 111.11, 1.2121, "small")
    yield root("root, stable", 111.11, 1.2121, "stable")
    yield chain("exp(x) - 1", [[0.00123], [1]], ("exp", 0), ("sub", -1, 1))
    yield chain("1 - cos(x)", [[0.0123], [1]], ("cos", 0), ("sub", 1, -1))
    yield chain("log(1 + x)", [[0.0012345], [1]], ("add", 0, 1), ("log", -1))
    yield chain("sqrt(x + 1) - sqrt(x)", [[12345.6], [1]], ("add", 0, 1), ("sqrt", -1), ("sqrt", 0), ("sub", -2, -1))
    yield chain("sine of a large number", [[1.23456], [777.7]], ("mul", 0, 1), ("sin", -1))
    yield chain("logistic", [[2.345], [1]], ("neg", 0), ("exp", -1), ("add", 1, -1), ("div", 1, -1))
    yield chain("geometric mean", [one], ("log", 0), ("mean", -1), ("exp", -1))
    yield newton("Newton's root", 7.3, 2.5, 3)
    yield normalised("normalised, at 1000", n(1000, 1001, 8))


def record():
    cases = []
    for e in expressions():
        assert len(e.values[-1]) == 1, e.name
        result = e.values[-1][0]
        case = {"name": e.name, "inputs": e.inputs, "steps": e.steps}
        case["exact"] = float(result.value)
        case["deviation"] = float(result.deviation())
        cases.append(case)
    return cases


def main():
    parser = argparse.ArgumentParser(prog="digits.py")
    parser.add_argument("--compare", action="store_true", help="compare with the recorded file, write nothing")
    arguments = parser.parse_args()
    cases = record()
    text = "[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n"
    if arguments.compare:
        with open(PATH) as file:
            print("equal" if file.read() == text else "other numbers than those recorded")
        return
    with open(PATH, "w") as file:
        file.write(text)
    print(f"{PATH}: {len(cases)} expressions, {len(text)} bytes")
    for case in cases:
        spread, exact = case["deviation"], abs(case["exact"])
        print(f"  {case['name']:32} {float(-mp.log10(spread / exact)) if spread else float('inf'):.2f} digits")


if __name__ == "__main__":
    main()
