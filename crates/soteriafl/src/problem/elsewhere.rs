//! A model that the program does not have: what its parameters are called and how they are shaped,
//! and a digest of all else that it is. Its losses and gradients are computed by the clients' own
//! programs ([`Elsewhere`]), for example by a PyTorch module.
//!
//! This is all that a server needs, which only adds messages; and what a client compares with the
//! module that it has before it takes part.

use std::collections::HashSet;
use std::fmt;

use soteriafl_core::objective::{
    ClipBound, Coordinates, Elsewhere, Objective, ObjectiveError, Outcome, Records, Workspace,
};

/// One tensor of parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterShape {
    /// What it is called.
    pub name: String,
    /// Its sides, outermost first; none of a single number.
    pub sides: Vec<usize>,
}

impl ParameterShape {
    /// Numbers in it.
    pub fn count(&self) -> usize {
        self.sides.iter().product()
    }

    /// Reads `NAME[SIDE,SIDE]`, as [`Display`](fmt::Display) writes it. Its numbers fit a `u32`.
    pub fn parse(text: &str) -> Option<Self> {
        let (name, sides) = text.strip_suffix(']')?.rsplit_once('[')?;
        if name.is_empty() || name.chars().any(char::is_control) {
            return None;
        }
        let side = |side: &str| {
            let number: usize = side.parse().ok()?;
            // One spelling for one shape.
            (number > 0 && number.to_string() == side).then_some(number)
        };
        let sides = match sides {
            "" => Vec::new(),
            sides => sides.split(',').map(side).collect::<Option<_>>()?,
        };
        let count = sides
            .iter()
            .try_fold(1_usize, |all, &side| all.checked_mul(side))?;
        u32::try_from(count).ok()?;
        let name = name.to_owned();
        Some(Self { name, sides })
    }
}

impl fmt::Display for ParameterShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sides: Vec<String> = self.sides.iter().map(usize::to_string).collect();
        write!(f, "{}[{}]", self.name, sides.join(","))
    }
}

/// What is known of a model that is computed elsewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElsewhereModel {
    parameters: Vec<ParameterShape>,
    architecture: String,
}

impl ElsewhereModel {
    /// A model with these parameters, one vector in this order, and this digest of its
    /// architecture. `None` where two have one name, there are none, or too many numbers.
    pub fn new(parameters: Vec<ParameterShape>, architecture: String) -> Option<Self> {
        let names: HashSet<&str> = parameters.iter().map(|part| part.name.as_str()).collect();
        let numbers = parameters
            .iter()
            .try_fold(0_u32, |all, part| all.checked_add(part.count() as u32));
        let fits = names.len() == parameters.len() && numbers.is_some_and(|numbers| numbers > 0);
        fits.then_some(Self {
            parameters,
            architecture,
        })
    }

    /// Its parameters, in their order.
    pub fn parameters(&self) -> &[ParameterShape] {
        &self.parameters
    }

    /// The digest of its architecture, as hexadecimal digits.
    pub fn architecture(&self) -> &str {
        &self.architecture
    }

    /// How many numbers all parameters are.
    pub fn dimension(&self) -> usize {
        self.parameters.iter().map(ParameterShape::count).sum()
    }

    /// What differs first in `other`, a client's own model, in words; `None` if nothing does.
    pub fn difference(&self, other: &Self) -> Option<String> {
        let pairs = self.parameters.iter().zip(&other.parameters);
        if let Some((own, found)) = pairs.clone().find(|(own, found)| own != found) {
            return Some(format!(
                "the run has the parameter {own} where yours is {found}"
            ));
        }
        let (own, found) = (self.parameters.len(), other.parameters.len());
        if own != found {
            return Some(format!("the run's has {own} parameters, yours {found}"));
        }
        (self.architecture != other.architecture).then(|| {
            "parameters agree, but layers, their settings, or frozen parameters and buffers differ"
                .to_owned()
        })
    }
}

/// The loss of a model whose numbers nobody here can compute.
pub(super) struct Absent {
    /// Its parameters.
    pub(super) dimension: usize,
}

fn absent() -> ObjectiveError {
    ObjectiveError::new("this model is computed by the programs of the clients, not here")
}

impl Elsewhere for Absent {
    fn most_records(&self) -> usize {
        1
    }

    fn add_clipped(
        &self,
        _: &[f32],
        _: Records<'_>,
        _: Option<ClipBound<'_>>,
        _: Coordinates<'_>,
        _: f32,
        _: &mut [f32],
    ) -> Result<(), ObjectiveError> {
        Err(absent())
    }
}

impl Objective for Absent {
    fn dimension(&self) -> usize {
        self.dimension
    }

    fn factors(
        &self,
        _: &[f32],
        _: Records<'_>,
        _: Option<&mut [Outcome]>,
        _: Option<&mut [f32]>,
        _: &mut Workspace,
    ) -> Result<(), ObjectiveError> {
        Err(absent())
    }

    fn elsewhere(&self) -> Option<&dyn Elsewhere> {
        Some(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn model(parameters: &[&str], architecture: &str) -> Option<ElsewhereModel> {
        let parameters = parameters.iter().map(|text| ParameterShape::parse(text));
        ElsewhereModel::new(parameters.collect::<Option<_>>()?, architecture.to_owned())
    }

    #[test]
    fn shapes_have_one_spelling() {
        for text in ["0.weight[64,784]", "bias[64]", "scale[]", "a [b][2]"] {
            assert_eq!(ParameterShape::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(ParameterShape::parse("scale[]").unwrap().count(), 1);
        for text in [
            "",
            "w",
            "w[",
            "[3]",
            "w[03]",
            "w[+3]",
            "w[3, 4]",
            "w[0]",
            "w[3,]",
            "a\nb[3]",
            "w[65536,65536]",
            "w[99999999999,99999999999,99999999999]",
        ] {
            assert_eq!(ParameterShape::parse(text), None, "{text}");
        }
    }

    #[test]
    fn models_say_what_differs() {
        let own = model(&["w[2,3]", "b[2]"], "aa").unwrap();
        assert_eq!(own.dimension(), 8);
        assert_eq!(own.difference(&own), None);
        let difference = |parameters: &[&str], architecture| {
            own.difference(&model(parameters, architecture).unwrap())
                .unwrap()
        };
        let other = difference(&["w[3,2]", "b[2]"], "aa");
        assert_eq!(
            other,
            "the run has the parameter w[2,3] where yours is w[3,2]"
        );
        assert!(difference(&["w[2,3]"], "aa").contains("2 parameters, yours 1"));
        assert!(difference(&["w[2,3]", "b[2]"], "ab").contains("frozen"));
        assert!(model(&["w[2]", "w[3]"], "").is_none() && model(&[], "").is_none());
        assert!(model(&["a[4294967295]", "b[1]"], "").is_none());
    }
}
