"""Which language is it? Letters become words, words become a sentence; the test has words that are new.

python examples/blocks/language_identification.py [--backend torch] [--epochs 15] [--out language-run]
"""

import argparse

import numpy as np

from multifold import ops
from multifold_bench.train import LabelledTask, train
from multifold_compat.blocks import (
    FC,
    Concat,
    Embedding,
    Function,
    InputTransform,
    Layers,
    Map,
    Mean,
    NGrams,
    Scalar,
)

WORDS = {
    "English": """
        the and house water through bridge morning think night church window because which right
        there should young weather father brother mother daughter year winter summer friend
        knowledge white green yellow black bread cheese apple street town country world earth
        light heavy short long always never often where who what when how strong weak quick slow
        read write speak whisper laugh cry shout dream
    """,
    "German": """
        der und haus wasser durch brücke morgen denken nacht kirche fenster weil welche richtig
        dort sollte jung wetter vater bruder mutter tochter jahr winter sommer freund wissen weiß
        grün gelb schwarz brot käse apfel straße stadt land welt erde licht schwer kurz lang immer
        niemals oft wo wer was wann wie stark schwach schnell langsam lesen schreiben sprechen
        flüstern lachen weinen rufen traum
    """,
    "Spanish": """
        el y casa agua por puente mañana pensar noche iglesia ventana porque cual derecho allí
        debería joven tiempo padre hermano madre hija año invierno verano amigo conocimiento
        blanco verde amarillo negro pan queso manzana calle ciudad país mundo tierra luz pesado
        corto largo siempre nunca muchas donde quien cuando como fuerte débil rápido despacio leer
        escribir hablar susurrar reír llorar gritar sueño
    """,
    "Finnish": """
        ja talo vesi läpi silta aamu ajatella yö kirkko ikkuna koska mikä oikea siellä pitäisi
        nuori sää isä veli äiti tytär vuosi talvi kesä ystävä tieto valkoinen vihreä keltainen
        musta leipä juusto omena katu kaupunki maa maailma valo raskas lyhyt pitkä aina koskaan
        usein missä kuka milloin kuinka vahva heikko nopea hidas lukea kirjoittaa puhua kuiskata
        nauraa itkeä huutaa uni
    """,
}
WIDTH = 32


def language():
    letter = InputTransform(ord) >> Scalar("int") >> Function(Embedding(512, WIDTH))
    spelled = InputTransform(
        lambda word: list(f"<{word}>")
    )  # a word begins and ends, so it has a pair of letters
    pairs = NGrams(2) >> Map(Concat() >> Function(FC(WIDTH, ops.tanh)))
    word = spelled >> Map(letter) >> pairs >> Mean() >> Function(FC(WIDTH))
    return InputTransform(str.split) >> Map(word) >> Mean() >> Function(FC(len(WORDS), activation=None))


def sentences(rng, vocabularies, count):
    """Return pairs of a sentence of 3 to 8 words, drawn from the words of a language, and its language."""
    labels = rng.integers(len(vocabularies), size=count).tolist()
    return [(" ".join(rng.choice(vocabularies[i], rng.integers(3, 9))), i) for i in labels]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backend", default="torch")
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--sentences", type=int, default=1500)
    parser.add_argument("--out", default="language-run")
    arguments = parser.parse_args()

    rng = np.random.default_rng(0)
    words = [rng.permutation(text.split()) for text in WORDS.values()]
    drawn = {
        "train": (slice(20, None), arguments.sentences),
        "dev": (slice(10, 20), 200),
        "test": (slice(10), 200),
    }
    parts = {name: sentences(rng, [some[part] for some in words], n) for name, (part, n) in drawn.items()}
    block = language()
    task = LabelledTask(
        "language", block, lambda seed: Layers(block, seed=seed), parts,
        classes=len(WORDS), batch=32, epochs=arguments.epochs, l2=0.0003,
    )  # fmt: skip
    result = train(task, arguments.out, arguments.backend, on_epoch=lambda x: print(x["epoch"], x["dev"]))
    print(f"accuracy on sentences of new words: {result.test['accuracy']:.2f}")
