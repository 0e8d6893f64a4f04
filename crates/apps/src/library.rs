// SPDX-License-Identifier: Apache-2.0
//! Loads a C library when the first database of it is opened. So programs start without the library
//! where no database is, and have none of its memory.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

/// A library that is loaded, and stays so until the process ends.
pub(crate) struct Library {
    handle: NonNull<c_void>,
    name: &'static str,
}

impl Library {
    /// Loads the library of this file name, the one against whose headers this program was built.
    pub fn load(name: &'static str) -> Result<Library, String> {
        let file = format!("{name}\0");
        let file = CStr::from_bytes_with_nul(file.as_bytes()).map_err(|e| e.to_string())?;
        // SAFETY: the name is terminated. The library's own start is that of the system's package.
        let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        match NonNull::new(handle) {
            Some(handle) => Ok(Library { handle, name }),
            None => Err(format!(
                "the library {name} can't be loaded ({}): install it, on Debian by apt-get install \
                 {}",
                last_error(),
                package(name)
            )),
        }
    }

    /// Returns the address of a function.
    pub fn function(&self, name: &CStr) -> Result<NonNull<c_void>, String> {
        // SAFETY: the library stays loaded, and the name is terminated.
        let address = unsafe { libc::dlsym(self.handle.as_ptr(), name.as_ptr()) };
        NonNull::new(address).ok_or_else(|| {
            let name = name.to_string_lossy();
            format!(
                "the library {} has no function {name}: install another version",
                self.name
            )
        })
    }
}

fn last_error() -> String {
    // SAFETY: `dlerror` returns null or a text that is valid until this thread's next such call.
    unsafe {
        let text = libc::dlerror();
        match text.is_null() {
            true => "no reason given".to_string(),
            false => CStr::from_ptr(text).to_string_lossy().into_owned(),
        }
    }
}

/// Returns the name of Debian's package, such as librocksdb7.8 for librocksdb.so.7.8.
fn package(library: &str) -> String {
    library.replace(".so.", "").replace(".so", "")
}

/// Declares functions of a C library as Rust functions of the same names, and `load`, which must
/// have succeeded before one of them is called.
macro_rules! functions_of {
    (
        $library:expr;
        $(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)*
    ) => {
        struct Functions {
            $($name: unsafe extern "C" fn($($type),*) $(-> $result)?,)*
        }

        static FUNCTIONS: std::sync::OnceLock<Functions> = std::sync::OnceLock::new();

        /// Loads the library, unless it is loaded already.
        fn load() -> Result<(), String> {
            if FUNCTIONS.get().is_some() {
                return Ok(());
            }
            let library = crate::library::Library::load($library)?;
            let functions = Functions {
                $($name: {
                    let name = concat!(stringify!($name), "\0").as_bytes();
                    let name = CStr::from_bytes_with_nul(name).map_err(|e| e.to_string())?;
                    let address = library.function(name)?.as_ptr();
                    // SAFETY: the library's header declares the function with this type.
                    unsafe {
                        std::mem::transmute::<
                            *mut std::ffi::c_void,
                            unsafe extern "C" fn($($type),*) $(-> $result)?,
                        >(address)
                    }
                },)*
            };
            // Another thread may have loaded the library meanwhile, with the same functions.
            let _ = FUNCTIONS.set(functions);
            Ok(())
        }

        $(unsafe extern "C" fn $name($($argument: $type),*) $(-> $result)? {
            let functions = FUNCTIONS.get().expect("a database is open, so the library is loaded");
            // SAFETY: the caller answers for the same conditions as those of the C function.
            unsafe { (functions.$name)($($argument),*) }
        })*
    };
}

pub(crate) use functions_of;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_named_with_its_package() {
        let refused = Library::load("libnosuchstore.so.7.8").err().unwrap();
        let expected = "apt-get install libnosuchstore7.8";
        assert!(refused.contains(expected), "{refused}");
        let libc = Library::load("libc.so.6").unwrap();
        assert!(libc.function(c"malloc").is_ok());
        let refused = libc.function(c"no_such_function").unwrap_err();
        assert!(
            refused.contains("libc.so.6 has no function no_such"),
            "{refused}"
        );
    }
}
