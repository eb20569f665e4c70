//! Values of single keys: from what was typed to what it means, or nothing where it does not fit.

use std::str::FromStr;

use soteriafl_data::TargetRange;
use toml::Value;

use super::{Auto, FeatureList, Init, Theory};

pub(super) const COORDINATES: &[(&str, bool)] = &[("own", false), ("shared", true)];

/// The name under which a choice is written.
pub(super) fn name<T: PartialEq>(choices: &[(&'static str, T)], value: T) -> &'static str {
    choices
        .iter()
        .find(|(_, choice)| *choice == value)
        .map_or("", |(name, _)| name)
}

pub(super) fn choice<T: Copy>(choices: &[(&'static str, T)]) -> impl Fn(&Value) -> Option<T> {
    move |value| {
        choices
            .iter()
            .find(|(name, _)| value.as_str() == Some(name))
            .map(|(_, choice)| *choice)
    }
}

/// A choice that knows its own words.
pub(super) fn word<T: FromStr>(value: &Value) -> Option<T> {
    value.as_str()?.parse().ok()
}

pub(super) fn auto<T>(parse: impl Fn(&Value) -> Option<T>) -> impl Fn(&Value) -> Option<Auto<T>> {
    move |value| match value.as_str() {
        Some("auto") => Some(Auto::Auto),
        _ => parse(value).map(Auto::Given),
    }
}

pub(super) fn word_or<T: Copy>(
    word: &'static str,
    meaning: T,
    parse: impl Fn(&Value) -> Option<T>,
) -> impl Fn(&Value) -> Option<T> {
    move |value| {
        if value.as_str() == Some(word) {
            Some(meaning)
        } else {
            parse(value)
        }
    }
}

/// A value, or this word where there is none.
pub(super) fn optional<T: Copy>(
    word: &'static str,
    parse: impl Fn(&Value) -> Option<T>,
) -> impl Fn(&Value) -> Option<Option<T>> {
    word_or(word, None, some(parse))
}

/// A value that may be left out.
pub(super) fn some<T>(parse: impl Fn(&Value) -> Option<T>) -> impl Fn(&Value) -> Option<Option<T>> {
    move |value| parse(value).map(Some)
}

pub(super) fn number(value: &Value) -> Option<f64> {
    let number = value
        .as_float()
        .or_else(|| value.as_integer().map(|integer| integer as f64))?;
    number.is_finite().then_some(number)
}

pub(super) fn positive(value: &Value) -> Option<f64> {
    number(value).filter(|number| *number > 0.0)
}

pub(super) fn not_negative(value: &Value) -> Option<f64> {
    number(value).filter(|number| *number >= 0.0)
}

pub(super) fn probability(value: &Value) -> Option<f64> {
    positive(value).filter(|number| *number <= 1.0)
}

/// The most records of one person that the accountant composes.
pub(super) const MOST_OF_PERSON: u32 = 1000;

pub(super) fn count(value: &Value) -> Option<usize> {
    usize::try_from(value.as_integer()?)
        .ok()
        .filter(|count| *count > 0)
}

/// A count that fits 32 bits.
pub(super) fn small(value: &Value) -> Option<u32> {
    count(value)?.try_into().ok()
}

/// A number above 0 and below 1.
pub(super) fn share(value: &Value) -> Option<f64> {
    probability(value).filter(|share| *share < 1.0)
}

/// A value, or the theory's.
pub(super) fn theory_or<T: Copy>(
    parse: impl Fn(&Value) -> Option<T>,
) -> impl Fn(&Value) -> Option<Theory<T>> {
    word_or("theory", Theory::Theory, move |value| {
        parse(value).map(Theory::Given)
    })
}

pub(super) fn class_weights(value: &Value) -> Option<Vec<f64>> {
    let weight = |value| positive(value).filter(|weight| *weight <= 1e6);
    let weights: Vec<f64> = value
        .as_array()?
        .iter()
        .map(weight)
        .collect::<Option<_>>()?;
    (!weights.is_empty()).then_some(weights)
}

pub(super) fn feature_list(value: &Value) -> Option<FeatureList> {
    let named = || names(value).filter(|names| !names.is_empty());
    let counted = count(value).map(FeatureList::Count);
    counted.or_else(|| named().map(FeatureList::Names))
}

pub(super) fn range(value: &Value) -> Option<TargetRange> {
    match &value.as_array()?[..] {
        [low, high] => TargetRange::new(number(low)?, number(high)?).ok(),
        _ => None,
    }
}

pub(super) fn names(value: &Value) -> Option<Vec<String>> {
    let names = value.as_array()?.iter();
    names.map(|name| Some(name.as_str()?.to_string())).collect()
}

pub(super) fn basis(value: &Value) -> Option<Option<usize>> {
    let text = value.as_str()?;
    match text.split_once(':') {
        None if text == "none" => Some(None),
        Some(("cosine", frequencies)) => {
            let frequencies = frequencies.parse().ok().filter(|count| *count > 0);
            frequencies.map(Some)
        }
        _ => None,
    }
}

pub(super) fn init(value: &Value) -> Option<Init> {
    let text = value.as_str()?;
    match text.split_once(':') {
        None if text == "zeros" => Some(Init::Zeros),
        None if text == "glorot" => Some(Init::Glorot),
        None if text == "given" => Some(Init::Given),
        Some(("normal", deviation)) => deviation
            .parse()
            .ok()
            .filter(|d: &f64| d.is_finite() && *d >= 0.0)
            .map(Init::Normal),
        Some(("file", path)) if !path.is_empty() => Some(Init::File(path.to_string())),
        _ => None,
    }
}
