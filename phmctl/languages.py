"""Codes of languages: one table of BCP 47's primary subtags, which are codes of ISO 639-1 and 639-3."""

import re
from collections.abc import Iterator

_CODE = re.compile(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]{2,8})*")  # de, pt-BR, zho_Hans
# the two-letter code, its three-letter codes, and the codes of the variety that corpora mean by it
_TABLE = """
aa aar, ab abk, ae ave, af afr, ak aka, am amh, an arg, ar ara arb, as asm, av ava, ay aym ayr, az aze azj, ba bak,
be bel, bg bul, bh bih, bi bis, bm bam, bn ben, bo bod tib, br bre, bs bos, ca cat, ce che, ch cha, co cos, cr cre,
cs ces cze, cu chu, cv chv, cy cym wel, da dan, de deu ger, dv div, dz dzo, ee ewe, el ell gre, en eng, eo epo, es
spa, et est ekk, eu eus baq, fa fas per pes prs, ff ful fuv, fi fin, fj fij, fo fao, fr fra fre, fy fry, ga gle, gd
gla, gl glg, gn grn gug, gu guj, gv glv, ha hau, he heb, hi hin, ho hmo, hr hrv, ht hat, hu hun, hy hye arm, hz
her, ia ina, id ind, ie ile, ig ibo, ii iii, ik ipk, io ido, is isl ice, it ita, iu iku, ja jpn, jv jav, ka kat
geo, kg kon, ki kik, kj kua, kk kaz, kl kal, km khm, kn kan, ko kor, kr kau knc, ks kas, ku kur kmr ckb, kv kom, kw
cor, ky kir, la lat, lb ltz, lg lug, li lim, ln lin, lo lao, lt lit, lu lub, lv lav lvs, mg mlg plt, mh mah, mi mri
mao, mk mkd mac, ml mal, mn mon khk, mr mar, ms msa may zsm, mt mlt, my mya bur, na nau, nb nob, nd nde, ne nep
npi, ng ndo, nl nld dut, nn nno, no nor, nr nbl, nv nav, ny nya, oc oci, oj oji, om orm gaz, or ori ory, os oss, pa
pan, pi pli, pl pol, ps pus pbt, pt por, qu que quy, rm roh, rn run, ro ron rum, ru rus, rw kin, sa san, sc srd, sd
snd, se sme, sg sag, si sin, sk slk slo, sl slv, sm smo, sn sna, so som, sq sqi alb als, sr srp, ss ssw, st sot, su
sun, sv swe, sw swa swh, ta tam, te tel, tg tgk, th tha, ti tir, tk tuk, tl tgl, tn tsn, to ton, tr tur, ts tso, tt
tat, tw twi, ty tah, ug uig, uk ukr, ur urd, uz uzb uzn, ve ven, vi vie, vo vol, wa wln, wo wol, xh xho, yi yid
ydd, yo yor, za zha, zh zho chi cmn, zu zul
"""
# varieties of Chinese, and languages without blanks between words, that have no two-letter code
_THREE_LETTERS = "yue wuu hak gan hsn nan lzh cdo cjy cpx czh czo mnp shn"


def _names() -> Iterator[tuple[str, str]]:
    for entry in _TABLE.split(","):
        codes = entry.split()
        yield from ((code, codes[0]) for code in codes)
    yield from ((code, code) for code in _THREE_LETTERS.split())


_SHORTEST = dict(_names())


def is_code(text: str) -> bool:
    """Return whether a text has the form of a language's code."""
    return _CODE.fullmatch(text) is not None


def language(code: object) -> str | None:
    """Return the shortest code of a language, without script and region: ``zh`` for ``zho_Hans``; None if unknown."""
    return _SHORTEST.get(re.split("[-_]", str(code).lower())[0])
