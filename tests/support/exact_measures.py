"""The measures once more, straight from their formulas in fifty digits: what the fast ones are held against."""

from mpmath import mp, mpf

mp.dps = 50


def _entropy(c):
    energies = [x**2 / sum(y**2 for y in c) for x in c]
    return -sum(e * mp.log(e**2) for e in energies if e)


def _u_half(c):
    c, m = sorted(c), -(-len(c) // 2)
    return 1 - min(c[i + m - 1] - c[i] for i in range(len(c) - m + 1)) / (c[-1] - c[0])


def _gini(c):
    return sum(abs(x - y) for x in c for y in c) / (2 * len(c) * sum(c))


def _pq_mean(c):
    return -((sum(mp.sqrt(x) for x in c) / len(c)) ** 2) / (sum(c) / len(c))


def _hoyer(c):
    root = mp.sqrt(len(c))
    return (root - sum(c) / mp.sqrt(sum(x**2 for x in c))) / (root - 1)


_FORMULAS = {
    "l0": lambda c: sum(x == 0 for x in c),
    "l0_eps": lambda c: sum(x <= mpf("0.01") for x in c),
    "-l1": lambda c: -sum(c),
    "-lp": lambda c: -(sum(mp.sqrt(x) for x in c) ** 2),
    "l2/l1": lambda c: mp.sqrt(sum(x**2 for x in c)) / sum(c),
    "-tanh_ab": lambda c: -sum(mp.tanh(mp.sqrt(x)) for x in c),
    "-log": lambda c: -sum(mp.log(1 + x**2) for x in c),
    "kappa4": lambda c: sum(x**4 for x in c) / sum(x**2 for x in c) ** 2,
    "u_theta": _u_half,
    "-lp_minus": lambda c: -sum(1 / x for x in c if x),
    "H_G": lambda c: -sum(mp.log(x**2) for x in c),
    "H_S": _entropy,
    "H_S_prime": lambda c: -sum(x * mp.log(x**2) for x in c if x),
    "hoyer": _hoyer,
    "gini": _gini,
    "pq-mean": _pq_mean,
    "pq": lambda c: 1 + _pq_mean(c),
}


def exact(name, w):
    """The measure called `name` of `w`, or None where it is undefined."""
    c = [abs(mpf(x)) for x in w]
    try:
        value = mpf(_FORMULAS[name](c))
    except ZeroDivisionError:
        return None
    return value if mp.isfinite(value) else None  # log 0
