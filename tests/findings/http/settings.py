import subprocess,os,sys
