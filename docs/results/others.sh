# Models of ED-Batch, in PyTorch and DyNet; DyNet needs an environment of its own: pip install dynet38 "numpy<2"
# --workload: sentences, mv-rnn, lattice-lstm, deep-tagger, deep-tagger-spelling; --batch: 1, 32, 256
OMP_NUM_THREADS=1 multifold bench step --backend torch --workload lattice-lstm --width 128 --batch 32 \
    --infer --contenders fold,fold-traced,dynet --dynet-python PATH

# Requests under load; --workload: trees, parser
OMP_NUM_THREADS=1 multifold bench serve --data PATH --json serving.jsonl

# Values that decide; --workload: parser, light-parser; --train for training
OMP_NUM_THREADS=1 multifold bench step --backend torch --workload parser --width 128 --batch 64 \
    --contenders loop,fold
