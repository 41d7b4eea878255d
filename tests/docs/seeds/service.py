"""A session with `vernier serve` as document 000 has it: its literal requests, in its order.

Each answer is a file NAME.json with `status` and `answer`; NAME-stats.json are the statistics when its job has ended.
"""
import io
import json
import os
import signal
import subprocess
import tarfile
import time
import urllib.error
import urllib.request
from pathlib import Path

serve = Path(os.environ["VERNIER_SOURCE"], "tests/framework/serve")
requests = [Path(os.environ["SEEDS"], "requests"), serve / "requests"]
patience = 600  # seconds, on a busy machine with sanitizers


def request(name, target, body=None, token="control"):
    headers = {"Content-Type": "application/json"}
    if token:
        headers["Authorization"] = f"Bearer {tokens[token]}"
    asked = urllib.request.Request(url + target, None if body is None else body.encode(), headers)
    for _ in range(patience * 5):  # 503: it is busy
        try:
            with urllib.request.urlopen(asked, timeout=patience) as got:
                status, text = got.status, got.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
        if status != 503:
            break
        time.sleep(0.2)
    try:
        text = json.loads(text)
    except ValueError:
        return {"status": status, "answer": text}
    answer = {"status": status, "answer": text}
    Path(f"{name}.json").write_text(json.dumps(answer))
    return answer


def literal(name):
    return next(folder / f"{name}.json" for folder in requests if (folder / f"{name}.json").exists()).read_text()


def changed(name, **changes):
    body = json.loads(literal(name))
    body["mixed_precision_config"] = {**body["mixed_precision_config"], **changes}
    return json.dumps(body)


def train(name, target, body):
    """Sends a training, waits for the end of its job, and asks for the statistics."""
    answer = request(name, target, body)
    if answer["status"] != 202:
        return None
    job = answer["answer"]["job_id"]
    for _ in range(patience * 5):
        if request(f"{name}-job", f"/v1/jobs/{job}")["answer"]["state"] not in ("queued", "running"):
            break
        time.sleep(0.2)
    request(f"{name}-stats", f"{stats}?job_id={job}")
    return job


finetuning, stats = "/finetuning/mixed-precision", "/finetuning/mixed-precision-stats"
with open("server.log", "w") as log:
    server = subprocess.Popen(
        ["vernier", "serve", "jobs", "--models", str(serve / "models"), "--listen", "127.0.0.1:0", "--cores", "2",
         "--requests-per-second", "100000"], stdout=log, stderr=log)
try:
    while not (Path("jobs/server.url").exists() and Path("jobs/server.url").read_text().endswith("\n")):
        if server.poll() is not None:
            raise SystemExit(Path("server.log").read_text())
        time.sleep(0.05)
    url = Path("jobs/server.url").read_text().strip().rstrip("/")
    lines = [line for line in Path("jobs/tokens").read_text().splitlines() if line[:1] not in ("#", "")]
    tokens = dict(line.split()[:2] for line in lines)
    request("nobody", stats, token=None)
    request("before-stats", stats)
    # 000:257 and 000:268
    request("setup", "/finetuning/setup-mixed-precision", literal("setup"))
    request("setup-stats", stats)
    # 000:211: a training that says nothing of precision, after the setup
    job = train("finetune", finetuning, literal("finetune"))
    # 000:222: the trained model, which transformers loads
    archive = request("model", f"/v1/jobs/{job}/model")["answer"]
    if isinstance(archive, bytes):
        with tarfile.open(fileobj=io.BytesIO(archive)) as model:
            Path("model.txt").write_text("\n".join(model.getnames()))
    # 000:275 and 000:296
    train("mixed-precision", finetuning, literal("mixed-precision"))
    train("optimized", "/finetuning/optimized", literal("optimized"))
    # 000:650
    train("fastapi", "/train/mixed-precision", literal("mixed-precision"))
    # 000:68: all 17 keys; its interval has two names with two values, which only hysteresis tells apart
    train("advanced", finetuning, literal("advanced"))
    request("two-intervals", finetuning, changed("advanced", hysteresis=1))
    # 000:94: the dtype that is not said; 004:239: everything is in place, and off
    train("default-dtype", finetuning, json.dumps({**json.loads(literal("mixed-precision")), "user_id": 124,
                                                   "mixed_precision_config": {"enabled": True}}))
    train("level-o0", finetuning, changed("mixed-precision", level="O0"))
    # A job that fails: the model has no such context.
    body = json.loads(literal("mixed-precision"))
    body["dataset_config"]["max_length"] = 100000
    train("failing", finetuning, json.dumps(body))
finally:
    server.send_signal(signal.SIGINT)
    server.wait()
audit = subprocess.run(["vernier", "audit", "verify", "jobs/audit.jsonl"], capture_output=True, text=True, check=False)
Path("audit.txt").write_text(audit.stdout + audit.stderr)
