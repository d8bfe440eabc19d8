"""`ProgramModel`: a Keras model that is called with programs, here and on the replicas of a strategy.

Keras expects arrays whose axis 0 counts examples, and a program is none. So its steps are written anew, by
one idea: the targets have a row for each example, or the results where there are no targets. With that
count a mean over unequal replicas becomes the mean over all examples. Two replicas with the losses 1, 2, 3
and 6: their means are 2 and 6, of which Keras takes the mean, 4. Weighted by ``count * replicas / total``,
1.5 and 0.5, they are 3 and 3, and the mean is that of 1, 2, 3 and 6.
"""

from __future__ import annotations

from typing import Any

import keras
import optree
import tensorflow as tf

from multifold.errors import BackendError
from multifold_tensorflow.program import run
from multifold_tensorflow.trials import private


class ProgramModel(keras.Model):
    """A Keras model whose methods and layers are ops, and whose input is a program.

    ``fit``, ``evaluate`` and ``predict`` take a data set of ``(program, y)`` or ``(program, y,
    sample_weight)``, ``predict`` also one of ``(program,)``. Under a strategy of `tf.distribute` each
    replica has a program of its own, of any number of examples, also none. Gradients and logs are those of
    one process that has all of them, for losses that are means over the rows of ``y``.

    Raises
    ------
    BackendError
        On several replicas, for a loss of Keras that is a sum instead of a mean.

    Notes
    -----
    Keras compiles a model by XLA where it finds a GPU, unless its ``supports_jit`` is False. XLA wants
    fixed sizes, which ragged programs do not have: set it to True before ``compile`` for tiled ones only.

    Examples
    --------
    >>> import multifold
    >>> from multifold_tensorflow import as_tensors
    >>> class Net(ProgramModel):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.words, self.head = keras.layers.Embedding(9, 3), keras.layers.Dense(2)
    ...     def join(self, x, y):
    ...         return x + y
    >>> def record(fold, words):
    ...     return fold.add("head", fold.reduce("join", [fold.add("words", word) for word in words]))
    >>> fold = multifold.Fold(backend="tensorflow")
    >>> program = as_tensors(fold.program(multifold.traces(record, [[1, 2, 3], [4], [5, 6]])))
    >>> net = Net()
    >>> net(program=program).shape
    TensorShape([3, 2])
    >>> net.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    >>> data = [(program, tf.constant([0, 1, 0]))]
    >>> spec = tf.type_spec_from_value(program), tf.TensorSpec((None,), tf.int32)
    >>> history = net.fit(tf.data.Dataset.from_generator(lambda: data, output_signature=spec), verbose=0)
    >>> sorted(history.history)
    ['loss']
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.supports_jit = False

    def call(self, program: Any, training: bool | None = None) -> Any:
        """Return the results of a program, as `run` does.

        ``training`` is not used: Keras tells the layers inside by itself.
        """
        return run(self, program)

    def train_step(self, data: Any) -> Any:
        program, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            results = self(program=program, training=True)
            loss = self.loss_of_replica(program, y, results, sample_weight, training=True)
            loss = self.optimizer.scale_loss(loss)
        gradients = tape.gradient(loss, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        return self.logs(program, y, results, sample_weight)

    def test_step(self, data: Any) -> Any:
        program, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        results = self(program=program, training=False)
        self.loss_of_replica(program, y, results, sample_weight, training=False)
        return self.logs(program, y, results, sample_weight)

    def predict_step(self, data: Any) -> Any:
        program, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        return self(program=program, training=False)

    def logs(self, program: Any, y: Any, results: Any, sample_weight: Any) -> dict[str, tf.Tensor]:
        """Update the metrics of Keras with this step; return them, name -> mean over all steps so far."""
        found = self.compute_metrics(program, y, results, sample_weight)
        strategy = self.distribute_strategy
        replicas = strategy.num_replicas_in_sync
        if replicas == 1 or replicas == len(strategy.extended.worker_devices):
            return found
        # Of several workers Keras (3.15) takes the mean along axis 0, which a number does not have.
        return {name: tf.reshape(value, (1,)) for name, value in found.items()}

    def loss_of_replica(
        self, program: Any, y: Any, results: Any, sample_weight: Any, *, training: bool
    ) -> tf.Tensor:
        """Return the share of this replica in the loss of all, for gradients that are added up.

        Also updates the metric "loss" with the loss of this replica, weighted by its rows.
        """
        count = tf.shape(optree.tree_leaves(results if y is None else y)[0])[0]
        # Keras divides it by the number of replicas, since it takes their mean.
        loss = self.compute_loss(program, y, results, sample_weight, training=training)
        loss = tf.where(count > 0, loss, 0)  # a mean over no examples may be no number
        here = tf.distribute.get_replica_context()
        replicas = tf.cast(here.num_replicas_in_sync, loss.dtype)
        metric = next(metric for metric in self.metrics if metric.name == "loss")
        # With the number of rows as its weight, the log is the mean over the rows of all steps.
        metric.update_state(loss * replicas, sample_weight=count)
        if here.num_replicas_in_sync == 1:
            return loss
        self.refuse_sums()
        total = tf.maximum(here.all_reduce(tf.distribute.ReduceOp.SUM, count), 1)
        return loss * replicas * tf.cast(count, loss.dtype) / tf.cast(total, loss.dtype)

    def refuse_sums(self) -> None:
        """Raise `BackendError` for a Keras loss with ``reduction="sum"``.

        Shares of replicas are weighted by their numbers of examples, which fits means alone.
        """
        summed = [x for x in optree.tree_leaves(self.loss) if getattr(x, "reduction", None) == "sum"]
        if summed:
            raise BackendError(
                f"Expected losses that are means over examples. Received {summed[0].name}, which is a sum.",
                'leave out reduction="sum", and scale the learning rate.',
            )

    def get_build_config(self) -> dict[str, Any]:
        """Return ``{"layers": [...]}``, the build configuration of each layer.

        From it a saved model is built without a program.
        """
        return {"layers": [layer.get_build_config() for layer in self._flatten_layers(include_self=False)]}

    def build_from_config(self, config: dict[str, Any]) -> None:
        for layer, own in zip(self._flatten_layers(include_self=False), config["layers"], strict=True):
            if own and not layer.built:
                layer.build_from_config(own)
        self.built = True

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        """Make all variables of model, metrics and optimizer before the steps are traced.

        Keras calls this before it traces a step, and would itself call the model with arrays.

        A variable that is made while several replicas are traced is none of their common state.
        """
        strategy = self.distribute_strategy
        drawn = private("keras.src.backend", "compute_output_spec")
        if strategy.num_replicas_in_sync == 1 or (self.optimizer is not None and self.optimizer.built):
            return
        if data_batch is None:
            # Keras's iterator yields a first step, a last step, and an iterator over their data.
            data_batch = next(iter(next(iter(iterator))[2]))
        with strategy.scope():
            local = optree.tree_map(lambda x: strategy.experimental_local_results(x)[0], data_batch)
            program, y, sample_weight = keras.utils.unpack_x_y_sample_weight(local)
            # As Keras does it: each call makes variables, and the next one finds them.
            results = drawn(lambda: self(program=program, training=False))
            if y is not None:
                drawn(self.compute_loss, program, y, results, sample_weight)
                drawn(self.compute_metrics, program, y, results, sample_weight)
            if self.optimizer is not None:
                self.optimizer.build(self.trainable_variables)
