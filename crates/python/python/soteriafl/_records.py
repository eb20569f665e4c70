"""From what Python programs have (arrays, sparse matrices, tables) to rows of the library."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _soteriafl as native
from .errors import DataError

__all__ = ["Labels", "classes_of", "columns_of", "labels", "rows", "split"]


@dataclass(frozen=True)
class Labels:
    """The different labels, in some order, and which of them every row has."""

    distinct: NDArray[Any]
    #: The same for the library: numbers as numbers, everything else as text.
    written: list[str] | list[float]
    codes: NDArray[np.uint32]


def rows(argument: str, X: Any) -> native.Rows:
    """Rows of features from an array, a sparse matrix, a data frame or an Arrow table."""
    if _is_sparse(X):
        return _sparse(argument, X)
    names = columns_of(X)
    values = _matrix(argument, X, names)
    return native.Rows.dense(argument, values, names)


def columns_of(X: Any) -> list[str] | None:
    """What the columns of a table are called; None where they have no names."""
    if _is_arrow(X):
        return [str(name) for name in X.column_names]
    if hasattr(X, "columns") and hasattr(X, "to_numpy"):
        names = list(X.columns)
        # Numbers that pandas counted by itself are no names.
        return [str(name) for name in names] if all(isinstance(n, str) for n in names) else None
    return None


def split(X: Any, y: Any) -> tuple[Any, Any]:
    """Features and labels, where `y` may be the name of a column of `X`."""
    if not isinstance(y, str):
        return X, y
    names = columns_of(X)
    if names is None:
        raise DataError("`y` is a name, but `X` has no columns with names")
    if y not in names:
        raise DataError(f"`y`: `X` has no column called {y!r}")
    if _is_arrow(X):
        return X.drop_columns([y]) if hasattr(X, "drop_columns") else X.drop([y]), X.column(y)
    return X[[name for name in X.columns if name != y]], X[y]


def labels(argument: str, y: Any, count: int) -> Labels:
    """The label of every row: numbers are the same class if they are equal."""
    values = _column(argument, y)
    if values.ndim == 2 and values.shape[1] == 1:
        _warn_column(argument)
        values = values[:, 0]
    if values.ndim != 1:
        raise DataError(
            f"`{argument}` must have one label for every row, found an array of shape "
            f"{values.shape}"
        )
    if len(values) != count:
        raise DataError(f"`{argument}` has {len(values)} labels, but there are {count} rows")
    kind = values.dtype.kind
    if kind == "f" and not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(values))[0])
        raise DataError(f"`{argument}`: row {row}: expected a label, found {values[row]}")
    if kind == "O":
        return _objects(argument, values)
    if kind not in "biufU":
        raise DataError(
            f"`{argument}` must hold numbers, truth values or text, found {values.dtype}"
        )
    distinct, codes = np.unique(values, return_inverse=True)
    written = distinct.astype(float).tolist() if kind in "iuf" else distinct.astype(str).tolist()
    return Labels(distinct, written, codes.astype(np.uint32))


def classes_of(labels: Labels, numbers: list[int]) -> NDArray[Any]:
    """What the classes are called by the program: the first label of each."""
    first: dict[int, int] = {}
    for label, number in enumerate(numbers):
        first.setdefault(number, label)
    return labels.distinct[[first[number] for number in sorted(first)]]


def _warn_column(argument: str) -> None:
    import warnings

    text = f"A column-vector was passed where `{argument}` was expected to be one-dimensional"
    if "sklearn" in sys.modules:
        from sklearn.exceptions import DataConversionWarning

        warnings.warn(text, DataConversionWarning, stacklevel=5)
    else:
        warnings.warn(text, UserWarning, stacklevel=5)


def _objects(argument: str, values: NDArray[Any]) -> Labels:
    """Labels that are Python objects: text, numbers or truth values, not both kinds."""
    kinds = {type(label) for label in values.tolist()}
    text = {kind for kind in kinds if issubclass(kind, str)}
    numbers = {kind for kind in kinds if issubclass(kind, (bool, int, float, np.number, np.bool_))}
    if kinds == text:
        distinct, codes = np.unique(values.astype(str), return_inverse=True)
        spellings = [str(label) for label in distinct]
        distinct = distinct.astype(object)
        return Labels(distinct, spellings, codes.astype(np.uint32))
    if kinds == numbers:
        return labels(argument, np.array(values.tolist()), len(values))
    found = ", ".join(sorted(kind.__name__ for kind in kinds))
    raise DataError(f"`{argument}` must hold text alone or numbers alone, found {found}")


def _matrix(argument: str, X: Any, names: list[str] | None) -> NDArray[Any]:
    """Two-dimensional numbers in single or double precision."""
    if _is_arrow(X):
        columns = [_numbers(argument, name, X.column(name)) for name in X.column_names]
        if not columns:
            raise DataError(f"`{argument}` has no columns")
        return np.stack(columns, axis=1)
    if names is not None:
        for name, kind in zip(names, _kinds(X), strict=True):
            if kind is not None and kind not in "biuf":
                raise DataError(
                    f"`{argument}`, column {name!r}: expected numbers, found "
                    f"{X[name].dtype}; write a category as columns of 0 and 1 "
                    "(pandas.get_dummies), or leave it out"
                )
        values = X.to_numpy()
        if values.dtype.kind == "O":
            # Nullable types of pandas: what is missing becomes nan, which is refused by its place.
            try:
                values = X.to_numpy(dtype=np.float64, na_value=np.nan)
            except TypeError:
                values = X.to_numpy().astype(np.float64)
    else:
        values = np.asarray(X)
    if values.dtype.kind == "O":
        try:
            values = values.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise DataError(f"`{argument}` must hold numbers, found objects: {error}") from None
    if values.dtype.kind == "c":
        raise DataError(f"`{argument}`: Complex data not supported, expected real numbers")
    if values.dtype.kind not in "biuf":
        raise DataError(f"`{argument}` must hold numbers, found {values.dtype}")
    if values.ndim != 2:
        raise DataError(
            f"`{argument}` must have two dimensions, rows and features, found shape "
            f"{values.shape}. Reshape your data: X.reshape(-1, 1) if it has a single feature, "
            "X.reshape(1, -1) if it is a single row"
        )
    if values.shape[0] == 0:
        raise DataError(f"`{argument}` has 0 sample(s): expected at least one row")
    if values.shape[1] == 0:
        raise DataError(
            f"`{argument}` has 0 feature(s) (shape={values.shape}) while a minimum of 1 is "
            "required."
        )
    if values.dtype == np.float32 or values.dtype == np.float64:
        return np.asarray(values)
    # Whole numbers up to 2^24 are exact in single precision; wider types go by way of double.
    narrow = values.dtype.kind == "b" or values.dtype.itemsize <= 2
    return np.asarray(values, dtype=np.float32 if narrow else np.float64)


def _kinds(X: Any) -> list[str | None]:
    """The kinds of a data frame's columns, by numpy's letters; None where they have none."""
    dtypes = getattr(X, "dtypes", None)
    if dtypes is None:
        return [None] * len(X.columns)
    return [getattr(dtype, "kind", None) for dtype in list(dtypes)]


def _numbers(argument: str, name: str, column: Any) -> NDArray[Any]:
    """A column of an Arrow table; what is missing becomes nan."""
    values = np.asarray(column.to_numpy())
    if values.dtype.kind not in "biuf":
        raise DataError(f"`{argument}`, column {name!r}: expected numbers, found {column.type}")
    return values


def _column(argument: str, y: Any) -> NDArray[Any]:
    if y is None:
        raise DataError(
            f"`{argument}` is missing: requires y to be passed, but the target y is None"
        )
    if hasattr(y, "to_numpy"):
        return np.asarray(y.to_numpy())
    try:
        # Of a list, numpy would write numbers as text where there is text.
        return np.asarray(y, dtype=object) if isinstance(y, (list, tuple)) else np.asarray(y)
    except ValueError as error:
        raise DataError(f"`{argument}`: {error}") from None


def _sparse(argument: str, X: Any) -> native.Rows:
    if X.ndim != 2:
        raise DataError(f"`{argument}` must have two dimensions, found shape {X.shape}")
    matrix = X.tocsr()
    if matrix.dtype.kind == "c":
        raise DataError(f"`{argument}`: Complex data not supported, expected real numbers")
    if matrix.dtype.kind not in "biuf":
        raise DataError(f"`{argument}` must hold numbers, found {matrix.dtype}")
    rows, columns = matrix.shape
    if rows == 0:
        raise DataError(f"`{argument}` has 0 sample(s): expected at least one row")
    if columns >= 1 << 27:
        raise DataError(f"`{argument}` has {columns} features, more than can be used (2^27)")
    if not matrix.has_canonical_format:
        # A copy: the caller's matrix stays as it is.
        matrix = matrix.copy()
        matrix.sum_duplicates()
    values = matrix.data
    if values.dtype not in (np.float32, np.float64):
        values = values.astype(np.float64)
    return native.Rows.sparse(
        argument,
        columns,
        matrix.indptr.astype(np.int64, copy=False),
        matrix.indices.astype(np.int32, copy=False),
        values,
        None,
    )


def _is_sparse(X: Any) -> bool:
    sparse = sys.modules.get("scipy.sparse")
    return sparse is not None and bool(sparse.issparse(X))


def _is_arrow(X: Any) -> bool:
    return hasattr(X, "column_names") and hasattr(X, "column") and hasattr(X, "schema")
