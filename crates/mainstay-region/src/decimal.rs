//! Numbers with a fraction, as text in decimal. They are added digit by digit, as people do it, so that 0.1 and 0.2 make 0.3 and all copies have the
//! same: a floating point number would have neither for certain.

use std::fmt;

/// Digits behind the point.
const FRACTION_DIGITS: u32 = 17;

/// Digits before the point.
const WHOLE_DIGITS: u32 = 20;

/// What 1 is.
const ONE: i128 = 10_i128.pow(FRACTION_DIGITS);

/// Above every number.
const END: i128 = 10_i128.pow(FRACTION_DIGITS + WHOLE_DIGITS);

/// A number with at most 20 digits before the point and 17 behind it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Decimal(i128);

impl Decimal {
    /// Reads a number: digits, perhaps with a sign, a point and an exponent. `None` if it is none, or has more digits than fit.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = str::from_utf8(text).ok()?;
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, exponent.parse::<i32>().ok()?),
            None => (text, 0),
        };
        let (sign, digits) = match mantissa.strip_prefix('-') {
            Some(digits) => (-1, digits),
            None => (1, mantissa.strip_prefix('+').unwrap_or(mantissa)),
        };
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        let all_digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if !all_digits(whole) || !all_digits(fraction) || whole.len() + fraction.len() == 0 {
            return None;
        }
        let fraction = fraction.trim_end_matches('0');
        let mut number: i128 = 0;
        for digit in whole.bytes().chain(fraction.bytes()) {
            number = number.checked_mul(10)?.checked_add(i128::from(digit - b'0'))?;
        }
        let behind = i32::try_from(fraction.len()).ok()?;
        let shift = exponent.checked_sub(behind)?.checked_add(i32::try_from(FRACTION_DIGITS).ok()?)?;
        let power = 10_i128.checked_pow(shift.unsigned_abs());
        let scaled = match power {
            _ if number == 0 => 0,
            Some(power) if shift >= 0 => number.checked_mul(power)?,
            // Digits that would be lost are no zeros.
            Some(power) => (number % power == 0).then_some(number / power)?,
            None => return None,
        };
        (scaled < END).then_some(Self(sign * scaled))
    }

    /// The sum; `None` if it has more digits than fit.
    #[must_use]
    pub fn checked_add(self, other: Self) -> Option<Self> {
        let sum = self.0.checked_add(other.0)?;
        (sum.unsigned_abs() < END.unsigned_abs()).then_some(Self(sum))
    }
}

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sign, number) = (if self.0 < 0 { "-" } else { "" }, self.0.abs());
        let (whole, fraction) = (number / ONE, number % ONE);
        if fraction == 0 {
            return write!(f, "{sign}{whole}");
        }
        let fraction = format!("{fraction:017}");
        write!(f, "{sign}{whole}.{}", fraction.trim_end_matches('0'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(one: &str, other: &str) -> Option<String> {
        let [one, other] = [one, other].map(|text| Decimal::parse(text.as_bytes()));
        one?.checked_add(other?).map(|sum| sum.to_string())
    }

    #[test]
    fn sums_are_those_of_the_digits() {
        for (one, other, expected) in [
            ("0.1", "0.2", "0.3"),
            ("10.50", "0.1", "10.6"),
            ("5.0e3", "2.0e2", "5200"),
            ("3", "-5", "-2"),
            ("-0.5", "0.5", "0"),
            ("-0", "0.", "0"),
            (".5", "+1e-17", "0.50000000000000001"),
            ("99999999999999999999", "0.99999999999999999", "99999999999999999999.99999999999999999"),
            ("0e999999", "1", "1"),
        ] {
            assert_eq!(sum(one, other).as_deref(), Some(expected), "{one} + {other}");
        }
    }

    #[test]
    fn what_is_no_number_or_has_too_many_digits_is_none() {
        for text in [
            "",
            ".",
            "-",
            "e5",
            "1e",
            "inf",
            "nan",
            "0x10",
            " 1",
            "1 ",
            "1.2.3",
            "--1",
            "1e-18",
            "1e20",
            "1e2147483648",
            "١",
        ] {
            assert_eq!(Decimal::parse(text.as_bytes()), None, "{text}");
        }
        assert_eq!(sum("99999999999999999999", "1"), None);
        assert_eq!(sum("-99999999999999999999", "-1"), None);
    }
}
