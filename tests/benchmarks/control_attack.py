#!/usr/bin/env python3
"""What an attack on callback/control costs a training: rounds with and without one, in turn.

    python3 tests/benchmarks/control_attack.py [--vernier build/release/vernier] [--rounds 3] [--steps 2000]

The attack: 500 clients that send a byte a second, 1,000 good reads a second, and 100 requests a second
that are malformed or have a wrong token, each in a connection of its own. The training has one thread. Its processor
time is compared, since the attack needs processors, too; on a machine with free cores, the wall-clock time as well.
Exit code 1: a step costs over 5 % more processor time, or losses or weights differ. Standard library only.
"""
import argparse
import json
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
CONFIG = """[run]
steps = {steps}
device = "cpu"
threads = 1
output = "{output}"
[task]
use = "mlp"
samples = 4096
inputs = 64
batch_size = 256
hidden = [512, 512]
[optimizer]
use = "adamw"
[checkpoint]
use = "none"
[[callback]]
use = "control"
requests_per_second = 5000.0
[[monitor]]
use = "jsonl"
"""
HOST = "Host: 127.0.0.1:{port}\r\n"
BAD = [  # framing that two programs could read differently, bombs, and floods
    "POST /v1/commands HTTP/1.1\r\n{host}Transfer-Encoding: chunked\r\n\r\n-2\r\n",
    "POST /v1/commands HTTP/1.1\r\n{host}Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "POST /v1/commands HTTP/1.1\r\n{host}Content-Length: 3\r\nContent-Length: 5\r\n\r\nabc",
    "POST /v1/commands HTTP/1.1\r\n{host}Content-Length: 99999999999\r\n\r\n",
    "POST /v1/commands HTTP/1.1\r\n{host}Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc",
    "GET /v1/run HTTP/1.1\r\n{host}" + "X: y\r\n" * 100_000 + "\r\n",
    "GET /v1/run HTTP/1.1\r\n{host}X: \0\r\n\r\n",
    "GET /v1/run HTTP/1.1\r\n{host}Authorization: Bearer " + "x" * 64 + "\r\n\r\n",
    "\x16\x03\x01\x02", "GET", "\r\n\r\n",
]


def connected(port):
    made = socket.create_connection(("127.0.0.1", port), timeout=5)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


class Attack:
    def __init__(self, port, token):
        self.port, self.is_over = port, threading.Event()
        self.latencies, self.bad, self.slow_closed, self.refused = [], 0, 0, 0
        good = f"GET /v1/run HTTP/1.1\r\n{HOST.format(port=port)}Authorization: Bearer {token}\r\n\r\n"
        self.good = good.encode()
        self.threads = [threading.Thread(target=each) for each in (self.read, self.send_bad, self.send_slowly)]
        for thread in self.threads:
            thread.start()

    def end(self):
        self.is_over.set()
        for thread in self.threads:
            thread.join()

    def read(self):
        client, due = connected(self.port), time.monotonic()
        while not self.is_over.is_set():
            due += 0.001
            time.sleep(max(0, due - time.monotonic()))
            begun = time.monotonic()
            try:
                client.sendall(self.good)
                answer = client.recv(65536)
                if answer.startswith(b"HTTP/1.1 200"):
                    self.latencies.append(time.monotonic() - begun)
                    continue
                self.refused += answer != b""
                client.close()  # cut off for one of the many others
                client = connected(self.port)
            except OSError:
                client.close()
                if self.is_over.wait(0.01):
                    return
                try:
                    client = connected(self.port)
                except OSError:
                    pass  # the run has ended
        client.close()

    def send_bad(self):
        texts = [text.replace("{host}", HOST.format(port=self.port)).encode("latin-1") for text in BAD]
        while not self.is_over.wait(0.01):
            try:
                with connected(self.port) as client:
                    client.sendall(texts[self.bad % len(texts)])
            except OSError:
                pass  # the server has closed before all was sent
            self.bad += 1

    def send_slowly(self):
        begin = b"GET / HTTP/1.1\r\nX: "
        clients = []
        while not self.is_over.is_set():
            while len(clients) < 500 and not self.is_over.is_set():
                try:
                    clients.append(connected(self.port))
                    clients[-1].sendall(begin)
                    clients[-1].setblocking(False)
                except OSError:
                    break
            for client in list(clients):
                try:
                    client.send(b"a")
                except OSError:
                    client.close()
                    clients.remove(client)
                    self.slow_closed += 1
            self.is_over.wait(1)
        for client in clients:
            client.close()


def cpu_seconds(process, thread):
    text = pathlib.Path(f"/proc/{process}/task/{thread}/stat").read_text().rpartition(")")[2].split()
    return (int(text[11]) + int(text[12])) / os.sysconf("SC_CLK_TCK")


def train(program, folder, steps, is_attacked):
    """Figures of one run."""
    run = folder / "run"
    (folder / "run.toml").write_text(CONFIG.format(steps=steps, output=run))
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    process = subprocess.Popen([program, "train", "run.toml", "--quiet"], cwd=folder, env=environment,
                               stderr=subprocess.DEVNULL)
    while not (run / "control.url").exists() or not (run / "control.url").read_text().endswith("\n"):
        if process.poll() is not None:
            sys.exit("the training has ended early")
        time.sleep(0.002)
    attack = None
    if is_attacked:
        port = int((run / "control.url").read_text().strip().rstrip("/").rpartition(":")[2])
        token = next(line.split()[1] for line in (run / "control.tokens").read_text().splitlines() if line[:4] == "read")
        attack = Attack(port, token)
    main = others = 0
    while process.poll() is None:
        try:
            tasks = [int(each) for each in os.listdir(f"/proc/{process.pid}/task")]
            main = max(main, cpu_seconds(process.pid, process.pid))
            others = max(others, sum(cpu_seconds(process.pid, each) for each in tasks if each != process.pid))
        except (OSError, IndexError):
            pass
        time.sleep(0.02)
    if attack:
        attack.end()
    summary = json.loads((run / "summary.json").read_text())
    return {"wall": summary["this_process"]["seconds"] / steps, "cpu": main / steps, "others": others,
            "seconds": summary["this_process"]["seconds"], "digest": summary["digest"],
            "losses": (run / "losses.jsonl").read_text(), "attack": attack}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vernier", default=str(ROOT / "build/release/vernier"))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2000)
    given = parser.parse_args()
    ratios, walls = [], []
    is_same = True
    for number in range(given.rounds):
        runs = {}
        for is_attacked in (False, True) if number % 2 == 0 else (True, False):
            with tempfile.TemporaryDirectory() as folder:
                runs[is_attacked] = train(given.vernier, pathlib.Path(folder), given.steps, is_attacked)
        quiet, attacked = runs[False], runs[True]
        attack = attacked["attack"]
        is_same = is_same and (quiet["digest"], quiet["losses"]) == (attacked["digest"], attacked["losses"])
        ratios.append(attacked["cpu"] / quiet["cpu"])
        walls.append(attacked["wall"] / quiet["wall"])
        latencies = sorted(attack.latencies)
        p99 = latencies[int(len(latencies) * 0.99)] if latencies else float("nan")
        print(f"round {number + 1}: a step {1e3 * quiet['cpu']:.3f} ms, attacked {1e3 * attacked['cpu']:.3f} ms of "
              f"processor time, ratio {ratios[-1]:.3f}; wall-clock ratio {walls[-1]:.3f}; other threads "
              f"{100 * attacked['others'] / attacked['seconds']:.1f} % of a core; "
              f"{len(latencies) / attacked['seconds']:.0f} good reads/s, p99 {1e3 * p99:.2f} ms, {attack.refused} refused; {attack.bad} bad "
              f"requests, {attack.slow_closed} slow clients cut off", flush=True)
    ratio = statistics.median(ratios)
    print(f"processor time of a step: {100 * (ratio - 1):+.1f} % (median); wall-clock: "
          f"{100 * (statistics.median(walls) - 1):+.1f} %; losses and weights {'bit-equal' if is_same else 'DIFFER'}")
    return 0 if is_same and ratio <= 1.05 else 1


if __name__ == "__main__":
    sys.exit(main())
