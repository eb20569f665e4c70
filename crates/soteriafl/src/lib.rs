//! Private federated learning with compressed communication.

pub mod accounting;
pub mod advice;
pub mod claim;
pub mod comparison;
pub mod config;
pub mod experiment;
pub mod model_file;
pub mod output;
pub mod planning;
pub mod problem;
pub mod record_shape;
pub mod report;
pub mod reproduce;
pub mod run;
pub mod specification;
pub mod words;
