# Ways to train beside each other: the table of 000:589, the benchmark of 003:138, mixed epochs beside full ones.
vernier compare "$SEEDS/model.toml" --precision --steps 10 --seeds 1 --output table >table.txt 2>&1
vernier profile "$SEEDS/model.toml" --set precision.use=bf16 --steps 3 >profile.txt 2>&1
# 004:207: what a comparison beside a run has measured is what that run expects.
vernier train "$SEEDS/model.toml" --set precision.use=bf16 --set run.output=expected >expected.txt 2>&1
