// A variable of each thread. MinGW frees a thread's variables before it destroys them, so there they live on: a few
// bytes for each thread that uses them.
#pragma once

#ifdef _WIN32
#define OF_THREAD(type, name) thread_local type & name = *new type
#else
#define OF_THREAD(type, name) thread_local type name
#endif
