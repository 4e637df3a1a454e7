//! The crate's allocator: the system's, counting what the current thread holds.
//!
//! It only counts. An allocator may neither unwind nor (on stable Rust) fail without ending the process, so the limit is
//! enforced at safe points between template instructions (guard.rs), and every single instruction is bounded.
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    // Const-initialised and without a destructor, so touching it inside the allocator allocates nothing.
    static HELD: Cell<isize> = const { Cell::new(0) };
}

fn add(bytes: isize) {
    // try_with: the allocator is also called while a thread is being torn down.
    let _ = HELD.try_with(|held| held.set(held.get().wrapping_add(bytes)));
}

/// Bytes this thread allocated minus bytes it freed.
pub fn held_by_thread() -> isize {
    HELD.try_with(Cell::get).unwrap_or(0)
}

pub struct CountingAllocator;

// SAFETY: every call goes to `System` unchanged; counting touches only a thread-local integer.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        add(layout.size() as isize);
        System.alloc(layout)
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        add(-(layout.size() as isize));
        System.dealloc(pointer, layout)
    }
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        add(layout.size() as isize);
        System.alloc_zeroed(layout)
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        add(size as isize - layout.size() as isize);
        System.realloc(pointer, layout, size)
    }
}
