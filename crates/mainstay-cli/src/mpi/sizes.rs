//! Sizes in bytes on the command line, with K, M and G for 1024, its square and its cube.

/// Each letter and how many bytes it stands for, the largest first.
const UNITS: [(char, u64); 3] = [('G', 1 << 30), ('M', 1 << 20), ('K', 1 << 10)];

/// Reads a size: `2097152`, `2M` or `2MiB`.
pub(super) fn bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text} is no size: say bytes, or K, M, G behind the number, as in 64M");
    let upper = text.trim().to_ascii_uppercase();
    let short = ["IB", "B"].iter().find_map(|end| upper.strip_suffix(end)).unwrap_or(&upper);
    let unit = UNITS.iter().find_map(|(letter, unit)| Some((short.strip_suffix(*letter)?, *unit)));
    let (number, unit) = unit.unwrap_or((short, 1));
    let number: u64 = number.trim().parse().map_err(|_| wrong())?;
    number.checked_mul(unit).ok_or_else(wrong)
}

/// Reads the length of a page.
pub(super) fn page_bytes(text: &str) -> Result<u32, String> {
    u32::try_from(bytes(text)?).map_err(|_| format!("{text} is longer than any page"))
}

/// A size as it may be said.
pub(super) fn text(bytes: u64) -> String {
    let unit = UNITS.iter().find(|(_, unit)| bytes > 0 && bytes.is_multiple_of(*unit));
    unit.map_or_else(|| bytes.to_string(), |(letter, unit)| format!("{}{letter}", bytes / unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_may_be_said_with_a_letter() {
        for (said, meant) in
            [("4096", 4096), ("2M", 2 << 20), ("8k", 8192), ("3GiB", 3 << 30), ("5MB", 5 << 20)]
        {
            assert_eq!(bytes(said), Ok(meant), "{said}");
        }
        for wrong in ["", "M", "-1", "2T", "1.5G", "99999999999G"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
        assert_eq!(page_bytes("4M"), Ok(4 << 20));
        assert!(page_bytes("4G").is_err());
        for said in ["2M", "1536", "3G", "0"] {
            assert_eq!(text(bytes(said).expect("a size")), said);
        }
    }
}
