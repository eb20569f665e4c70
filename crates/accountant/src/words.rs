//! Words for choices: one table gives a type its `Display`, its `FromStr` and the list of all its
//! values.

/// Gives an enum its words: `words!(Type, "what it is called in errors", Variant = "word", ...)`.
#[doc(hidden)]
#[macro_export]
macro_rules! words {
    ($type:ident, $what:literal, $($variant:ident = $word:literal),+ $(,)?) => {
        impl $type {
            /// Every choice, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// All words, as `first | second | ...`.
            #[must_use]
            pub fn list() -> String {
                let words: Vec<&str> = Self::ALL.iter().map(|choice| choice.word()).collect();
                words.join(" | ")
            }

            /// The word for it in files, options and reports.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word),+
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.pad(self.word())
            }
        }

        impl std::str::FromStr for $type {
            type Err = $crate::EventError;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                let known = Self::ALL.iter().copied();
                known.clone().find(|choice| choice.word() == text).ok_or_else(|| {
                    let known: Vec<&str> = known.map(Self::word).collect();
                    $crate::EventError::UnknownWord {
                        what: $what,
                        found: text.to_owned(),
                        known: known.join(", "),
                    }
                })
            }
        }
    };
}
