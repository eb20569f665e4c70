//! Printing costs without understating them.

/// `value` rounded up to `digits` significant decimal digits: for numbers that must not be
/// understated when printed.
#[must_use]
pub fn round_up(value: f64, digits: u32) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let digits = digits.clamp(1, 17) as usize;
    let near: f64 = format!("{value:.*e}", digits - 1).parse().unwrap_or(value);
    if near >= value {
        return near;
    }
    // One unit in the last place more; printing it again removes the rounding error of the
    // addition.
    let unit = 10_f64.powi(value.abs().log10().floor() as i32 - (digits as i32 - 1));
    let up: f64 = format!("{:.*e}", digits - 1, near + unit)
        .parse()
        .unwrap_or(value);
    up.max(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_goes_up_and_no_further_than_one_unit() {
        for (value, digits, expected) in [
            (1.23456, 3, 1.24),
            (1.23, 3, 1.23),
            (0.999_96, 4, 1.0),
            (99.991, 3, 100.0),
            (1.000_000_1e-5, 3, 1.01e-5),
            (123_456.0, 2, 130_000.0),
            (0.0, 3, 0.0),
        ] {
            assert_eq!(round_up(value, digits), expected, "{value}");
        }
        let mut value = 1e-9;
        while value < 1e9 {
            let up = round_up(value, 6);
            assert!(
                up >= value && up <= value * (1.0 + 1.0001e-5),
                "{value} {up}"
            );
            assert_eq!(round_up(up, 6), up);
            value *= 1.37;
        }
        assert!(round_up(f64::NAN, 3).is_nan());
    }
}
