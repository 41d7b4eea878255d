# The quick start of 003:358, with a line for each epoch, and the examples of 003:26 that go wrong and recover.
here=$PWD
(cd "$VERNIER_SOURCE" &&
  vernier quickstart --mode basic --epochs 3 --batch-size 32 --output "$here/basic") >basic.txt 2>&1
vernier quickstart "$SEEDS/model.toml" --mode errors --output errors >errors.txt 2>&1
grep '^epoch ' basic.txt | awk '/loss [0-9.]+ .*scale [0-9.e+]+ .*memory [0-9.]+/ {count += 1}
  END {print count + 0 " lines of epochs, each with loss, scale and memory"}' >epochs.txt
