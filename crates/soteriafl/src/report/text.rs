//! Numbers and foreign text, made fit for a page: escaping, units, significant digits.

/// A sentence with a capital first letter.
pub(super) fn capitalised(sentence: &str) -> String {
    let mut letters = sentence.chars();
    let first = letters.next().into_iter().flat_map(char::to_uppercase);
    first.chain(letters).collect()
}

/// Text as it may stand between tags and inside quoted attributes of HTML and SVG.
///
/// Control characters, which neither format can hold, become the replacement character.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\r' | '\t' => out.push(character),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// JSON as it may stand inside a script element: no end tag, no comment and no entity can arise.
pub(super) fn script_json(value: &serde_json::Value) -> String {
    // Outside strings JSON has none of these characters, and inside them the escape means the same.
    value
        .to_string()
        .replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029")
}

/// A number with at most `digits` significant digits: `0.5713`, `12.5`, `10⁻⁵`, `2.4×10⁷`.
pub(super) fn number(value: f64, digits: usize) -> String {
    if value.is_nan() {
        return "not a number".to_owned();
    }
    if value.is_infinite() {
        return if value > 0.0 { "∞" } else { "-∞" }.to_owned();
    }
    let scientific = format!("{value:.*e}", digits.max(1) - 1);
    let Some((mantissa, exponent)) = scientific.split_once('e') else {
        return scientific;
    };
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if value == 0.0 {
        return "0".to_owned();
    }
    if (-3..7).contains(&exponent) {
        let decimals = (digits as i32 - 1 - exponent).max(0) as usize;
        return trim(&format!("{value:.decimals$}")).to_owned();
    }
    let power: String = exponent.to_string().chars().map(superscript).collect();
    match trim(mantissa) {
        "1" => format!("10{power}"),
        "-1" => format!("-10{power}"),
        mantissa => format!("{mantissa}×10{power}"),
    }
}

/// Like [`number`], but never below the value: for epsilon and delta, whose rounding must not
/// flatter.
pub(super) fn number_rounded_up(value: f64, digits: usize) -> String {
    if !value.is_finite() || value <= 0.0 {
        return number(value, digits);
    }
    let scale = 10f64.powi(digits as i32 - 1 - value.log10().floor() as i32);
    // What is above a written number by the rounding of binary fractions alone is that number.
    let raised = (value * scale * (1.0 - 1e-12)).ceil() / scale;
    number(if raised.is_finite() { raised } else { value }, digits)
}

/// Without the zeros that end a decimal fraction.
fn trim(text: &str) -> &str {
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.')
    } else {
        text
    }
}

fn superscript(character: char) -> char {
    match character {
        '-' => '⁻',
        '1' => '¹',
        '2' => '²',
        '3' => '³',
        digit @ ('0' | '4'..='9') => {
            char::from_u32('⁰' as u32 + digit as u32 - '0' as u32).unwrap_or(digit)
        }
        other => other,
    }
}

/// A whole number with thin gaps between groups of three digits: `32 560`.
pub(super) fn count(value: u64) -> String {
    let digits = value.to_string();
    if digits.len() < 5 {
        return digits;
    }
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push('\u{202f}');
        }
        out.push(digit);
    }
    out
}

/// A quantity with a decimal prefix and three digits: `1.25 MB`, `640 kbit`, `12 B`.
pub(super) fn quantity(value: f64, unit: &str) -> String {
    if !value.is_finite() {
        return format!("{} {unit}", number(value, 3));
    }
    let mut scaled = value;
    let mut prefix = "";
    for next in ["k", "M", "G", "T", "P", "E"] {
        // 999.6 would be written as 1000.
        if scaled.abs() < 999.5 {
            break;
        }
        scaled /= 1000.0;
        prefix = next;
    }
    format!("{} {prefix}{unit}", number(scaled, 3))
}

/// A time: `0.42 s`, `12.3 s`, `3 min 05 s`, `2 h 10 min`.
pub(super) fn duration(seconds: f64) -> String {
    if !seconds.is_finite() || seconds < 0.0 {
        return "unknown".to_owned();
    }
    let whole = seconds.round() as u64;
    match whole {
        0..100 if seconds < 99.95 => format!("{} s", number(seconds, 3)),
        0..6000 => format!("{} min {:02} s", whole / 60, whole % 60),
        _ => {
            let minutes = (seconds / 60.0).round() as u64;
            format!("{} h {:02} min", minutes / 60, minutes % 60)
        }
    }
}

/// A share as a percentage with two decimals: `84.53 %`.
pub(super) fn percent(share: f64) -> String {
    if share.is_finite() {
        format!("{:.2}\u{202f}%", 100.0 * share)
    } else {
        number(share, 3)
    }
}

/// Appends formatted text to a `String`, which cannot fail.
macro_rules! append {
    ($out:expr, $($text:tt)+) => {{
        let out: &mut String = $out;
        let _ = std::fmt::Write::write_fmt(out, format_args!($($text)+));
    }};
}
pub(super) use append;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_is_escaped() {
        assert_eq!(
            escape("<a b=\"c\">&'\u{1}\n"),
            "&lt;a b=&quot;c&quot;&gt;&amp;&#39;\u{fffd}\n"
        );
    }

    #[test]
    fn script_json_means_the_same_and_cannot_end_the_script() {
        let value = serde_json::json!({"</script><!--": "&amp;]]>\u{2028}\"\\"});
        let text = script_json(&value);
        assert!(!text.contains(['<', '>', '&', '\u{2028}']));
        assert_eq!(
            serde_json::from_str::<serde_json::Value>(&text).unwrap(),
            value
        );
    }

    #[test]
    fn numbers_keep_their_significant_digits() {
        let cases = [
            (0.0, "0"),
            (0.571_312, "0.5713"),
            (0.001_234_56, "0.001235"),
            (12.5, "12.5"),
            (124.0, "124"),
            (123_456.7, "123457"),
            (1e-5, "10⁻⁵"),
            (-1e-5, "-10⁻⁵"),
            (2.4e7, "2.4×10⁷"),
            (1.234_56e-12, "1.235×10⁻¹²"),
            (0.999_99, "1"),
            (f64::INFINITY, "∞"),
            (f64::NAN, "not a number"),
        ];
        for (value, expected) in cases {
            assert_eq!(number(value, 4), expected);
        }
    }

    #[test]
    fn epsilon_is_never_written_too_low() {
        let cases = [
            (1.0, "1"),
            (1.1, "1.1"),
            (0.999_51, "0.9996"),
            (0.999_96, "1"),
            (1.000_01, "1.001"),
            (12.341, "12.35"),
            (1.000_1e-5, "1.001×10⁻⁵"),
            (1e-5, "10⁻⁵"),
            (0.0, "0"),
            (f64::INFINITY, "∞"),
        ];
        for (value, expected) in cases {
            assert_eq!(number_rounded_up(value, 4), expected);
        }
        for index in 1..2000 {
            let value = index as f64 * 0.000_731;
            let written: f64 = number_rounded_up(value, 3).parse().unwrap_or(f64::NAN);
            assert!(
                written >= value * (1.0 - 1e-9) || value < 1e-3,
                "{value} is written as {written}"
            );
        }
    }

    #[test]
    fn units_change_where_the_written_number_would_overflow() {
        assert_eq!(quantity(12.0, "B"), "12 B");
        assert_eq!(quantity(999.4, "B"), "999 B");
        assert_eq!(quantity(999.6, "B"), "1 kB");
        assert_eq!(quantity(1_254_000.0, "B"), "1.25 MB");
        assert_eq!(quantity(2.5e13, "bit"), "25 Tbit");
        assert_eq!(count(9999), "9999");
        assert_eq!(count(1_234_567), "1\u{202f}234\u{202f}567");
        assert_eq!(percent(0.845_3), "84.53\u{202f}%");
        assert_eq!(duration(0.421), "0.421 s");
        assert_eq!(duration(99.96), "1 min 40 s");
        assert_eq!(duration(185.2), "3 min 05 s");
        assert_eq!(duration(7800.0), "2 h 10 min");
        assert_eq!(duration(f64::NAN), "unknown");
    }
}
