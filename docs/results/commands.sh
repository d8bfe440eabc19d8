multifold bench experiments --quick --backend torch --minutes 4 --remark TEXT --json PATH \
    --data sst=PATH --data sick=PATH --dynet-python PATH
multifold bench experiments --backend torch --backend numpy --experiment a --experiment c \
    --experiment d --experiment e --seconds 2 --json PATH --remark TEXT --data sst=PATH \
    --data sick=PATH --dynet-python PATH
multifold bench experiments --backend tensorflow --experiment a --seconds 1 --json PATH \
    --remark TEXT --data sst=PATH --data sick=PATH
multifold bench experiments --backend mxnet --experiment a --seconds 1 --json PATH --remark TEXT \
    --data sst=PATH --data sick=PATH
multifold bench experiments --backend jax --experiment a --seconds 1 --json PATH --remark TEXT \
    --data sst=PATH --data sick=PATH
multifold bench experiments --backend tensorflow --experiment c --experiment d --experiment e \
    --seconds 1 --json PATH --remark TEXT --data sst=PATH --data sick=PATH
multifold bench experiments --backend mxnet --experiment c --experiment d --experiment e \
    --seconds 1 --json PATH --remark TEXT --data sst=PATH --data sick=PATH
multifold bench experiments --backend jax --experiment c --experiment d --experiment e --seconds 1 \
    --json PATH --remark TEXT --data sst=PATH --data sick=PATH
multifold bench experiments --backend torch --experiment b --seconds 1 --json PATH --remark TEXT \
    --data sst=PATH --data sick=PATH
multifold bench experiments --backend tensorflow --experiment b --seconds 1 --json PATH \
    --remark TEXT --data sst=PATH --data sick=PATH
multifold bench experiments --backend mxnet --experiment b --seconds 1 --json PATH --remark TEXT \
    --data sst=PATH --data sick=PATH
multifold bench experiments --backend numpy --experiment b --seconds 1 --json PATH --remark TEXT \
    --data sst=PATH --data sick=PATH
multifold bench experiments --backend jax --experiment b --seconds 1 --json PATH --remark TEXT \
    --data sst=PATH --data sick=PATH
