# The three trades of the documents, on made data: advertisements, search results, clips of a video.
python3 "$VERNIER_SOURCE/examples/data/texts.py" data/texts
python3 "$VERNIER_SOURCE/examples/data/clips.py" data/clips
few="--set run.epochs=0 --set run.steps=10 --set run.threads=1 --set run.validate_every=5"
vernier train "$VERNIER_SOURCE/configs/text.toml" $few --set callback.schedule.warmup_steps=2 --mixed-precision bf16 \
  --set run.output=adverts
vernier train "$VERNIER_SOURCE/configs/text.toml" $few --set callback.schedule.warmup_steps=2 \
  --set task.data=data/texts/results.jsonl --set task.target=clicks \
  --set 'task.text=["query", "title", "snippet"]' --set task.kind=ranking --set task.group=search \
  --set task.batch_size=8 --set run.output=search
vernier train "$VERNIER_SOURCE/configs/clips.toml" $few --mixed-precision bf16 --set run.output=clips
vernier check "$VERNIER_SOURCE/configs/clips.toml" --mixed-precision fp16 >check.txt 2>&1
vernier train "$VERNIER_SOURCE/configs/clips.toml" $few --set task.recompute=full --set run.output=recompute
